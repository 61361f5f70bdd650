#!/bin/sh
# VS Code on a shared GPU: `sbatch vscode.sh` on a login node, then open the address that appears in vscode-JOB.log (the
# first time it asks you to log in). --comment=share:interactive=16G on sbatch's command line gives it more GPU memory.
#SBATCH --job-name=vscode
#SBATCH --gres=gpu:shared
#SBATCH --comment=share:interactive=8G
#SBATCH --time=8:00:00
#SBATCH --output=vscode-%j.log
exec code tunnel --accept-server-license-terms --name "gpu-$SLURM_JOB_ID"
