"""Clusters of gradients: people of one class share a direction, so clusters stand for classes."""

from __future__ import annotations

import warnings
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from interlace.errors import InterlaceError

Clustering = Literal["kmeans", "gaussian", "spectral", "hdbscan"]

NOISE = -1


def cluster(points: Tensor, clusters: int, how: Clustering, seed: int) -> Tensor:
    """Cluster rows of ``points`` (n, d).

    Args:
        points: The rows; only their distances to each other, as shares of their spread, matter.
        clusters: How many clusters to look for; at most one a row.
        how: ``kmeans`` with ten starts; ``gaussian``, a mixture with a variance of its own for
            every direction and cluster; ``spectral``, over the similarity of all
            pairs (memory for n² numbers); ``hdbscan``, which finds the number of clusters itself
            and leaves rows out.
        seed: Decides the starts.

    Returns:
        Shape (n,), int64: clusters counted from 0 without gaps, or -1 for rows left out.

    Raises:
        InterlaceError: HDBSCAN leaves out every row.
    """
    x = points.double().numpy()
    # Gradients are tiny, and the algorithms' tolerances are not.
    x = (x - x.mean(0)) / (x.std() or 1.0)
    k = min(clusters, len(np.unique(x, axis=0)))
    if k <= 1 and how != "hdbscan":
        return torch.zeros(len(x), dtype=torch.int64)
    with warnings.catch_warnings():
        # Rows of one class nearly coincide, which scikit-learn takes for a mistake.
        warnings.simplefilter("ignore")
        found = _fit_predict(x, k, how, seed % 2**32)
    if (found == NOISE).all():
        raise InterlaceError(
            f"HDBSCAN found no cluster among {len(x):,} gradients; take `clustering: kmeans`"
        )
    dense = np.full(len(found), NOISE, dtype=np.int64)
    kept = found != NOISE
    dense[kept] = np.unique(found[kept], return_inverse=True)[1]
    return torch.from_numpy(dense)


def _fit_predict(
    x: np.ndarray[tuple[int, int], np.dtype[np.float64]], k: int, how: Clustering, seed: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if how == "kmeans":
        from sklearn.cluster import KMeans

        model = KMeans(k, n_init=10, random_state=seed)
    elif how == "gaussian":
        from sklearn.mixture import GaussianMixture

        model = GaussianMixture(k, covariance_type="diag", n_init=10, random_state=seed)
    elif how == "spectral":
        from sklearn.cluster import SpectralClustering

        # Of neighbours' graphs, classes that are far apart make several, which it cannot cut.
        model = SpectralClustering(k, affinity="rbf", gamma=1 / x.shape[1], random_state=seed)
    else:
        from sklearn.cluster import HDBSCAN

        model = HDBSCAN(min_cluster_size=max(2, len(x) // (10 * k)), copy=True)
    return np.asarray(model.fit_predict(x), dtype=np.int64)
