"""Export estimators of scikit-learn with skl2onnx: ``python sklearn_models.py FOLDER NAME…``.

It runs under the interpreter that `benchmarks.exported_models` makes. They are trained on random
numbers and words.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from skl2onnx import to_onnx
from skl2onnx.common.data_types import StringTensorType
from sklearn.cluster import KMeans
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

ROWS, FEATURES = 400, 20
ESTIMATORS: dict[str, Any] = {
    "sklearn_forest": RandomForestRegressor(n_estimators=100, random_state=0),
    "sklearn_boosting": GradientBoostingClassifier(random_state=0),
    "sklearn_mlp": MLPClassifier((256, 256), max_iter=5, random_state=0),
    "sklearn_svm": SVC(random_state=0),
    "sklearn_extra_trees": ExtraTreesClassifier(n_estimators=100, random_state=0),
    "sklearn_neighbors": KNeighborsClassifier(),
    "sklearn_kmeans": KMeans(8, random_state=0),
    "sklearn_words": make_pipeline(CountVectorizer(), LogisticRegression()),
}


def export(name: str, path: Path) -> None:
    """Write the estimator `name` to `path`; the one of words reads strings."""
    random = np.random.default_rng(0)
    numbers = random.standard_normal((ROWS, FEATURES), dtype=np.float32)
    classes = (numbers[:, 0] > 0).astype(np.int64)
    estimator = ESTIMATORS[name]
    if name == "sklearn_words":
        words = np.array([f"word{number}" for number in range(500)])
        texts = [" ".join(random.choice(words, 12)) for _ in range(ROWS)]
        estimator.fit(texts, classes)
        model = to_onnx(estimator, initial_types=[("text", StringTensorType([None, 1]))])
    else:
        estimator.fit(numbers, classes)
        model = to_onnx(estimator, numbers[:1])
    path.write_bytes(model.SerializeToString())


def main() -> None:
    folder, *names = sys.argv[1:]
    for name in names:
        try:
            export(name, Path(folder, f"{name}.onnx"))
        except Exception as error:  # the others are exported nevertheless
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
