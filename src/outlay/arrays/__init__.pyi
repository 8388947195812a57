from .callback import from_callback as from_callback
from .pieces import from_pieces as from_pieces
from .files import from_file as from_file
from .scatter import scatter as scatter
from .scatter import broadcast as broadcast
from .gather import gather as gather
from .slicing import slice_of as slice_of
from .pencil import pencil as pencil
