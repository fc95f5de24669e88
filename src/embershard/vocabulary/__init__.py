"""Which ids own a row: the same on every rank, and the same for the same updates at any world size."""

from embershard.vocabulary.adoption import Adoption, Owners
from embershard.vocabulary.sightings import Sightings, collide
from embershard.vocabulary.vocabulary import Counts, Step, Vocabulary, bytes_of_vocabulary

__all__ = ["Adoption", "Counts", "Owners", "Sightings", "Step", "Vocabulary", "bytes_of_vocabulary", "collide"]
