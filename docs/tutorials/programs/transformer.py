"""A decoder-only transformer for one device: what it computes, its loss, its optimizer and its data."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax


def attend(query, key, value):
    """Let each token look at those before it; scores and softmax are in float32."""
    query, key = (query * query.shape[-1] ** -0.5).astype(jnp.float32), key.astype(jnp.float32)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key)
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, jnp.finfo(jnp.float32).min)
    return jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores).astype(value.dtype), value)


def drop(x, keys, rate):
    """Drop units with a key for each sample; none without keys."""
    if keys is None:
        return x
    stays = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate, x.shape[1:]))(keys)
    return jnp.where(stays, x / (1 - rate), 0)


class Attention(nn.Module):
    """Attention of several heads, with normalized queries and keys."""

    head_dim: int

    @nn.compact
    def __call__(self, x):
        def projected(name):
            heads = (x.shape[-1] // self.head_dim, self.head_dim)
            return nn.DenseGeneral(heads, use_bias=False, dtype=x.dtype, name=name)(x)

        query = nn.RMSNorm(dtype=x.dtype, name="query_norm")(projected("query"))
        key = nn.RMSNorm(dtype=x.dtype, name="key_norm")(projected("key"))
        values = attend(query, key, projected("value"))
        return nn.DenseGeneral(x.shape[-1], axis=(-2, -1), dtype=x.dtype, name="out")(values)


class FeedForward(nn.Module):
    """Two dense layers, four times as wide inside."""

    @nn.compact
    def __call__(self, x):
        hidden = nn.silu(nn.Dense(4 * x.shape[-1], dtype=x.dtype, name="up")(x))
        return nn.Dense(x.shape[-1], dtype=x.dtype, name="down")(hidden)


class Block(nn.Module):
    """Attention and the feed-forward layer: side by side behind one norm (`parallel`), or one after the other."""

    head_dim: int
    dropout: float
    parallel: bool

    @nn.compact
    def __call__(self, x, keys, layer):
        attention, feed_forward = Attention(self.head_dim, name="attention"), FeedForward(name="feed_forward")
        parts = [lambda x: attention(x) + feed_forward(x)] if self.parallel else [attention, feed_forward]
        for number, part in enumerate(parts):
            change = part(nn.RMSNorm(dtype=x.dtype, name=f"norm_{number}")(x))
            own = None if keys is None else jax.vmap(lambda key, n=2 * layer + number: jax.random.fold_in(key, n))(keys)
            x = x + drop(change, own, self.dropout)
        return x


class Head(nn.Module):
    """The logits of the next token, in float32."""

    vocabulary: int

    @nn.compact
    def __call__(self, x):
        x = nn.RMSNorm(dtype=x.dtype, name="norm")(x)
        return nn.Dense(self.vocabulary, dtype=jnp.float32, name="logits")(x)


class Transformer(nn.Module):
    """Embeddings of tokens and positions, a scan over equal blocks, and the head; computed in bfloat16."""

    width: int = 256
    layers: int = 6
    head_dim: int = 32
    vocabulary: int = 100
    dropout: float = 0.1
    parallel: bool = True

    @nn.compact
    def __call__(self, tokens, keys=None):
        normal = nn.initializers.normal
        x = nn.Embed(self.vocabulary, self.width, embedding_init=normal(1.0), dtype=jnp.bfloat16, name="tokens")(tokens)
        x += self.param("positions", normal(0.02), (tokens.shape[-1], self.width)).astype(x.dtype)
        scan = nn.scan(
            nn.remat(lambda block, x, layer: (block(x, keys, layer), None), prevent_cse=False),
            variable_axes={"params": 0},
            split_rngs={"params": True},
        )
        x, _ = scan(Block(self.head_dim, self.dropout, self.parallel, name="blocks"), x, jnp.arange(self.layers))
        return Head(self.vocabulary, name="head")(x)


def training(model, length, peak):
    """Return what `outlay.train_step` and `outlay.init_state` take: parameters from a key, the loss, the optimizer."""

    def init_params(key):
        return model.init(key, jnp.zeros((1, length), jnp.int32))["params"]

    def loss(params, batch, keys):
        logits = model.apply({"params": params}, batch["inputs"], keys)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
        return losses.mean(-1), {"accuracy": (logits.argmax(-1) == batch["labels"]).mean(-1)}

    rate = optax.warmup_exponential_decay_schedule(0, peak, warmup_steps=10, transition_steps=1, decay_rate=0.99)
    return init_params, loss, optax.adam(rate)


def sequences(num, length):
    """Draw random sequences of tokens, with the random numbers of JAX before it could draw them in parts."""
    with jax.threefry_partitionable(False):
        _, key = jax.random.split(jax.random.PRNGKey(42))
        tokens = jax.random.randint(key, (num, length), 1, 100)
    return {"inputs": jnp.pad(tokens[:, :-1], ((0, 0), (1, 0))), "labels": tokens}
