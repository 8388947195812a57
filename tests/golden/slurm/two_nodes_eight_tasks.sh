#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --output=digits-%j.out
#SBATCH --nodes=2
# 8 processes in all, each with 1 GPU.
#SBATCH --ntasks-per-node=4
# Every process sees all GPUs of its node and takes its own: hidden GPUs make NCCL slow.
#SBATCH --gres=gpu:4
#SBATCH --cpus-per-task=10
# Whole cores: two hyperthreads of one core are not two cores.
#SBATCH --hint=nomultithread
#SBATCH --time=20:00:00

# What fails below, such as loading a module, ends the job at once.
set -e

# Lines come when they are printed, and none is lost with a process.
export PYTHONUNBUFFERED=1
# Since SLURM 22.05, srun does not take it from the job.
export SRUN_CPUS_PER_TASK=10
# Known to the processes of this job alone, so that no others get in.
OUTLAY_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export OUTLAY_TOKEN

# Each process finds its place by itself. Lines are labelled by process; if one fails, all end.
srun --label --kill-on-bad-exit=1 outlay run digits --layout fsdp
