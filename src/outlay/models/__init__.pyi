from .transformer.config import TransformerConfig as TransformerConfig
