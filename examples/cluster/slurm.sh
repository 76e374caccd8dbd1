#!/bin/bash
# A recipe on all nodes of a Slurm job:
#   sbatch examples/cluster/slurm.sh
# Ray starts on every node, Bough on the first one; Ray stops when Bough ends.
# Submit the same job again after a time limit or a lost node: the run resumes.
#SBATCH --job-name=bough
#SBATCH --nodes=4
#SBATCH --exclusive
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=1
#SBATCH --mem=0
#SBATCH --time=12:00:00
set -euo pipefail

# Both on a disk that all nodes see. The environment must have `pip install 'bough[ray]'`.
source "${BOUGH_VENV:-$HOME/bough-venv}/bin/activate"
export BOUGH_CACHE="${BOUGH_CACHE:-$SLURM_SUBMIT_DIR/cache}"

# The address, not the name: many systems resolve a node's own name to 127.0.1.1. On nodes with
# several networks the first address may not be the one that the other nodes reach; set it here.
read -r head_node < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
read -r head_ip _ < <(srun --nodes=1 --ntasks=1 --nodelist="$head_node" hostname --all-ip-addresses)

# Without a token, everyone on the network could run code as you. It is kept in ~/.ray/auth_token.
export RAY_AUTH_MODE=token
ray get-auth-token --generate > /dev/null

# How long nodes wait for each other, in seconds: Python on a shared disk starts slowly the first time.
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300

# srun does not take --cpus-per-task from the job since Slurm 22.05.
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 \
  ray symmetric-run --address "$head_ip:6379" --min-nodes "$SLURM_JOB_NUM_NODES" \
  --num-cpus "$SLURM_CPUS_PER_TASK" --num-gpus "${SLURM_GPUS_ON_NODE:-0}" --disable-usage-stats -- \
  bough run alfworld-roundwise-dpo --output-dir "$SLURM_SUBMIT_DIR/runs/alfworld" --cluster auto "$@"
