from .transformer.config import TransformerConfig as TransformerConfig
from .attention.dot_product import attention as attention
