# a recipe, prepared
from .arrays.init_sharded import host_memory as host_memory
from .arrays.init_sharded import memory_problems as memory_problems
from .arrays.shardings import shardings as shardings
from .cli.options import ForceOption as ForceOption
from .cli.options import JsonOption as JsonOption

# commands
from .cli.options import command_group as command_group
from .cli.output import check_outputs as check_outputs
from .cli.output import print_json as print_json
from .cli.output import print_picture as print_picture
from .cli.output import say as say
from .core.array_leaves import dtype_and_shape as dtype_and_shape
from .core.array_leaves import is_real as is_real
from .core.array_leaves import type_differences as type_differences
from .core.input_file import check_input as check_input
from .core.input_file import open_input as open_input
from .core.jax_compat import attached_devices as attached_devices
from .core.jax_compat import compiled_for as compiled_for
from .core.jax_compat import is_compile_only as is_compile_only
from .core.jax_compat import use_cpu_if_alone as use_cpu_if_alone

# traced programs, and arrays by path
from .core.jax_tracing import CALLS as CALLS
from .core.jax_tracing import CHECKPOINTS as CHECKPOINTS
from .core.jax_tracing import COND as COND
from .core.jax_tracing import CUSTOM_RULES as CUSTOM_RULES
from .core.jax_tracing import SCAN as SCAN
from .core.jax_tracing import WHILE as WHILE
from .core.jax_tracing import rerun as rerun
from .core.jax_tracing import run_jaxpr as run_jaxpr
from .core.jax_tracing import settings as settings
from .core.one_line import OneLine as OneLine
from .core.output_file import check_writable as check_writable
from .core.output_file import picture_bytes as picture_bytes
from .core.output_file import real_path as real_path
from .core.output_file import whole_file as whole_file
from .core.output_file import write_output as write_output
from .core.output_file import write_picture as write_picture
from .core.paths import flatten_paths as flatten_paths
from .core.paths import map_with_paths as map_with_paths
from .core.paths import matches as matches
from .core.paths import pattern_problem as pattern_problem
from .core.paths import split_path as split_path
from .core.public_names import public_names as public_names

# words and names
from .core.quantities import counted as counted
from .core.quantities import format_bytes as format_bytes
from .core.quantities import format_seconds as format_seconds
from .core.quantities import plural as plural
from .core.runtime_flags import num_cores as num_cores
from .core.suggest import did_you_mean as did_you_mean
from .core.terminal_text import to_text as to_text
from .core.toml import KeyPath as KeyPath
from .core.toml import TomlLines as TomlLines

# files: with positions, whole or not there
from .core.toml import parse_toml as parse_toml
from .core.toml import toml_line as toml_line
from .core.toml import toml_value as toml_value
from .devices.mesh_info import is_first as is_first
from .devices.mesh_info import processes_of as processes_of
from .graph.encoding import Encoding as Encoding

# graphs
from .graph.step_graph import CACHE as CACHE
from .graph.step_graph import INPUTS as INPUTS
from .graph.step_graph import Read as Read
from .program.modes import Mode as Mode
from .recipes.arguments import alternatives as alternatives
from .recipes.prepare import Prepared as Prepared
from .recipes.prepare import prepare as prepare
from .recipes.recipe import DEFAULT_MESH as DEFAULT_MESH
from .recipes.recipe_run import RECORDED_ROWS as RECORDED_ROWS

# a kind of run: its options, loop, saving, recording and result
from .recipes.recipe_run import RecipeRun as RecipeRun
from .recipes.run_result import result_not_lost as result_not_lost

# reports
from .render.page import Block as Block
from .render.page import Chip as Chip
from .render.page import Code as Code
from .render.page import Facts as Facts
from .render.page import Page as Page
from .render.pictures import Image as Image
from .render.report import Report as Report
from .report.run_page import png_image as png_image
from .report.run_page import run_page as run_page
from .train.metrics_file import MetricsFile as MetricsFile
from .train.progress import Progress as Progress
from .train.recording import MemoryRecorder as MemoryRecorder
from .train.recording import Recorder as Recorder
from .train.recording import Rows as Rows
from .train.recording import RowTypes as RowTypes
from .train.recording import ZarrRecorder as ZarrRecorder
from .train.recording import open_array as open_array
from .train.run_folder import RECORDING as RECORDING
from .train.run_folder import RunFolder as RunFolder
from .train.run_options import RunOptions as RunOptions
from .train.run_record import RunRecord as RunRecord
from .train.saving import Saved as Saved
from .train.saving import Saving as Saving
from .train.step_loop import StepLoop as StepLoop
from .train.step_loop import last_checkpoint_in_words as last_checkpoint_in_words
