"""Average precision and ROC AUC from scikit-learn, for src/eval/metrics.rs.

    python tests/golden/link_metrics.py > tests/golden/link_metrics.json      # scikit-learn 1.9.1, numpy
"""

import json
import random
import warnings

from sklearn.metrics import average_precision_score, roc_auc_score

warnings.simplefilter("ignore")


def case(name, positives, negatives):
    y = [1] * len(positives) + [0] * len(negatives)
    scores = positives + negatives
    auc = float(roc_auc_score(y, scores))
    return {
        "name": name,
        "positives": positives,
        "negatives": negatives,
        "ap": float(average_precision_score(y, scores)),
        "auc": None if auc != auc else auc,
    }


rng = random.Random(7)
grid = lambda n, shift: [round(rng.gauss(shift, 1.0), 1) + 0.0 for _ in range(n)]
smooth = lambda n, shift: [rng.gauss(shift, 1.0) for _ in range(n)]
cases = [
    case("separated", [3.0, 2.0], [1.0, 0.0]),
    case("reversed", [0.0, 1.0], [2.0, 3.0]),
    case("all tied", [0.5, 0.5, 0.5], [0.5, 0.5]),
    case("ties across classes", [2.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, -1.0, -1.0]),
    case("negative zero is zero", [0.0, -0.0, 1.0], [-0.0, 0.0, -1.0]),
    case("one pair", [0.25], [0.75]),
    case("one positive, many negatives", [0.3], [0.1, 0.3, 0.3, 0.9, -4.0, 0.2]),
    case("coarse grid, many ties", grid(60, 0.6), grid(60, 0.0)),
    case("unequal classes, ties", grid(23, 0.4), grid(115, 0.0)),
    case("no ties", smooth(50, 0.8), smooth(50, 0.0)),
    case("subnormal and huge", [5e-324, 1e308, -1e-310], [0.0, -1e308, 1e-310]),
    case("only positives", [0.1, 0.2], []),
    case("only negatives", [], [0.1, 0.2]),
]
print(json.dumps(cases, indent=1))
