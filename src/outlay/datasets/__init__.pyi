from .examples import Examples as Examples
from .tokens import tokens as tokens
from .images import digits as digits
from .images import images as images
from .images import arrays as arrays
from .tables import table as table
from .records import records as records
