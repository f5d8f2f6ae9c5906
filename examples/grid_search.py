"""Search the sizes and the penalty of a network by scikit-learn's GridSearchCV.

    python examples/grid_search.py runs/search

Each fit keeps its run in a folder of its own below that directory. A search that is killed starts again from
its beginning, and finds the same: scikit-learn keeps no state of a search.
"""

from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path

from sklearn.datasets import load_wine
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cotswold.sklearn import FullBatchClassifier


def main(directory: Path, short: bool) -> None:
    X, y = load_wine(return_X_y=True)
    X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
    network = FullBatchClassifier(random_state=0, directory=directory, tol=0.01)
    settings = {
        "fullbatchclassifier__hidden_layer_sizes": [(), (5,)] if short else [(), (5,), (20,), (20, 20)],
        "fullbatchclassifier__alpha": [0.01, 1.0],
    }
    search = GridSearchCV(make_pipeline(StandardScaler(), network), settings, cv=2 if short else 5)
    search.fit(X_train, y_train)
    print(search.best_params_, search.best_score_, search.score(X_test, y_test))
    best: FullBatchClassifier = search.best_estimator_.named_steps["fullbatchclassifier"]
    print(best.network_, best.n_iter_, best.loss_)


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="directory of the run")
    parser.add_argument("--short", action="store_true", help="small size, as in the tests")
    main(**vars(parser.parse_args()))
