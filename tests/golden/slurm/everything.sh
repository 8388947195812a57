#!/bin/bash
#SBATCH --job-name=tiny
#SBATCH --output=tiny-%j.out
#SBATCH --nodes=4
# 16 processes in all, each with 2 GPUs.
#SBATCH --ntasks-per-node=4
# Every process sees all GPUs of its node and takes its own: hidden GPUs make NCCL slow.
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=16
# Whole cores: two hyperthreads of one core are not two cores.
#SBATCH --hint=nomultithread
#SBATCH --partition=a100
#SBATCH --constraint=a100&ib
#SBATCH --time=1-12:00:00
#SBATCH --account=abc@a100
#SBATCH --qos=long
# When the job is preempted or its node fails, it goes back into the queue, under the same number.
#SBATCH --requeue
# So the output of an earlier start is kept.
#SBATCH --open-mode=append
# Two minutes before the time limit, every process gets USR1: the run saves a checkpoint and ends with 75.
#SBATCH --signal=USR1@120

# What fails below, such as loading a module, ends the job at once.
set -e

# Nothing that happened to be loaded where the job was submitted.
module purge
module load cuda/12.8
module load nccl/2.27

# Lines come when they are printed, and none is lost with a process.
export PYTHONUNBUFFERED=1
# Since SLURM 22.05, srun does not take it from the job.
export SRUN_CPUS_PER_TASK=16
# Known to the processes of this job alone, so that no others get in.
OUTLAY_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export OUTLAY_TOKEN
export DATA='/data/my set'
export XLA_FLAGS='--a=1 --b='"'"'2'"'"''

# Each process finds its place by itself. Lines are labelled by process; if one fails, all end.
code=0
srun --label --kill-on-bad-exit=1 outlay run 'my models/lm.py:tiny' --steps 1000 --checkpoint-every=100 --note 'it'"'"'s $5' --resume || code=$?
# Out of time, and saved: back into the queue, to continue from there. So too where a machine was lost (69), but not for ever.
if [ "$code" -eq 75 ] || { [ "$code" -eq 69 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 100 ]; }; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
