"""Training against the service: `nn.Embedding` and `nn.EmbeddingBag` whose rows it keeps. Imports torch and the client.

    with Remote("127.0.0.1:50051") as remote:
        user, genres = RemoteEmbedding(remote, "user_id"), RemoteEmbeddingBag(remote, "genre")
        loss = model(user(user_ids), genres(genre_ids, offsets))
        loss.backward()  # moves the rows in the service

A forward is a lookup. What one backward pass has of gradients, for all features, is one update: applied as a whole, and
once, whatever is sent again. The table's own optimizer applies it; the modules have no parameters.
"""

from embershard.torch.modules import RemoteEmbedding, RemoteEmbeddingBag
from embershard.torch.remote import Remote

__all__ = ["Remote", "RemoteEmbedding", "RemoteEmbeddingBag"]
