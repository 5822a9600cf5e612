"""From a file to answers: what runs where torch and the source of the model are not."""

from vitpe_deploy.deploy.buckets import LoadedBuckets
from vitpe_deploy.deploy.loader import LoadedArtifact, load
from vitpe_deploy.deploy.pair import LoadedPair, load_pair
from vitpe_deploy.deploy.predictions import Prediction

__all__ = ["LoadedArtifact", "LoadedBuckets", "LoadedPair", "Prediction", "load", "load_pair"]
