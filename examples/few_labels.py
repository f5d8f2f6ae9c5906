"""Learn features without labels, then classes from few labels, in scikit-learn's pipelines.

    python examples/few_labels.py --out runs/labels

`StackFeatures` trains a locally connected sparse autoencoder on images of digits. Logistic regression and
`FullBatchClassifier` learn from its responses, or from pixels. The program writes `few_labels.svg`.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cotswold.sklearn import FullBatchClassifier, StackFeatures

STACK = {"kernel_size": 4, "stride": 1, "channels": 8, "pool": 2, "norm": 3, "pool_padding": "same"}


def main(out: Path, short: bool) -> None:
    pixels, classes = load_digits(return_X_y=True)
    counts, seeds = ([50], 1) if short else ([20, 50, 200, 500], 3)
    stack = StackFeatures([STACK], shape=(8, 8), epochs=1 if short else 20, random_state=0)
    features = stack.fit_transform(pixels)
    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    network = make_pipeline(StandardScaler(), FullBatchClassifier((50,), alpha=1.0, tol=0.01, random_state=0))
    models = {
        "logistic regression, pixels": (logistic, pixels),
        "logistic regression, features": (logistic, features),
        "network, pixels": (network, pixels),
        "network, features": (network, features),
    }

    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for name, (model, inputs) in models.items():
        scores = np.zeros((len(counts), seeds))
        for place in np.ndindex(scores.shape):
            split = train_test_split(
                inputs, classes, train_size=counts[place[0]], stratify=classes, random_state=place[1]
            )
            scores[place] = clone(model).fit(split[0], split[2]).score(split[1], split[3])
        print(name, dict(zip(counts, scores.mean(1).round(3).tolist(), strict=True)))
        axes.semilogx(counts, scores.mean(1), "o-" if "features" in name else "o:", label=name)
    axes.set_xticks(counts, [str(each) for each in counts])
    axes.minorticks_off()
    axes.set(xlabel="labelled images", ylabel="accuracy on all others")
    axes.legend()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "few_labels.svg")


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--short", action="store_true", help="small size, as in the tests")
    main(**vars(parser.parse_args()))
