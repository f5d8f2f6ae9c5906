"""Train on a table in a CSV file with texts and missing values, and predict new rows of another file.

    python examples/table.py runs/table

Start the same command again after a kill: the run continues from its last checkpoint.
"""

import csv
import random
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import cotswold

RECIPE = """
name = "shop"

[data]
type = "table"
source = '{source}'
target = "bought"
validation = 0.1
test = 0.2
missing = "impute"

[network]
layers = [{{ type = "linear", features = 16 }}, {{ type = "relu" }}]

[training]
strategy = "supervised"
optimizer = "adamw"
batch_size = 16
epochs = {epochs}
checkpoint_minutes = {minutes}
metrics = ["auroc"]
"""


def write_table(path: Path, count: int, seed: int, with_target: bool) -> None:
    """Write customers; one in ten has no income."""
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("age", "city", "income", "bought") if with_target else ("age", "city", "income"))
        for _ in range(count):
            age, city = draw.randint(18, 80), draw.choice(["Oxford", "Bath", "Stroud"])
            income = draw.gauss(30 + age / 4, 5)
            row = str(age), city, "" if draw.random() < 0.1 else f"{income:.1f}"
            bought = "yes" if income + 10 * (city == "Bath") > 45 else "no"
            table.writerow((*row, bought) if with_target else row)


def main(directory: Path, short: bool) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    known, new, recipe = directory / "known.csv", directory / "new.csv", directory / "shop.toml"
    write_table(known, 300, seed=0, with_target=True)
    write_table(new, 12, seed=1, with_target=False)
    text = RECIPE.format(source=known, epochs=60 if short else 30, minutes=0.001 if short else 1.0)
    recipe.write_text(text)
    run = cotswold.train_recipe(recipe, directory / "run", stores=directory / "stores", resume="if_started")
    print(cotswold.evaluate(run).metrics)
    found = cotswold.predict(run, new)
    print(found.best)
    print(found)  # the first rows, with their probabilities


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="directory of the run")
    parser.add_argument("--short", action="store_true", help="small size, as in the tests")
    main(**vars(parser.parse_args()))
