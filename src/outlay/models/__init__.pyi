from .transformer.config import TransformerConfig as TransformerConfig
from .transformer.expert_config import ExpertConfig as ExpertConfig
from .experts.routing_facts import Routing as Routing
