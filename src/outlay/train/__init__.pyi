from .data import Data as Data
from .fit_result import Fit as Fit
from .data import BucketedData as BucketedData
from .recording import Recording as Recording
from .patience import Patience as Patience
from .metrics_log import MetricsLog as MetricsLog
from .objective import as_model as as_model
from .checkpoint.read_weights import read_weights as read_weights
