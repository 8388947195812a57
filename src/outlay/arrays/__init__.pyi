from .from_slices import from_callback as from_callback
from .pieces import from_pieces as from_pieces
from .from_slices import from_file as from_file
from .gather_scatter import scatter as scatter
from .gather_scatter import broadcast as broadcast
from .gather_scatter import gather as gather
from .slicing import slice_of as slice_of
from .shardings import pencil as pencil
