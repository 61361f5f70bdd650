// Package gpusim is a machine's simulated GPUs: what a program finds where a machine without a GPU has none.
//
// Its state lies in one file that all programs map (layout.go):
//
//	gpusim run APP ──────────► ┌────────────┐ ◄── libnvidia-ml.so.1 (nvmlsim, C)
//	nvidia-cuda-mps-server ──► │ state file │ ◄── gpusim smi, tests, demo (Open)
//	                           └────────────┘
//
// An application leaves its whole solo demand over time there (up to 512 phases). A device then needs no driver: a
// program that takes the lock advances it from the last event to now, phase by phase, under rlcore/contention's law, so
// that the outcome does not depend on the times of the looks. A process killed with SIGKILL is found by its pid and
// start time and stops to count at the next look.
//
// The file's mode is 0666: jobs of several users compute on the simulated GPU, as they would through /dev/nvidia0. A
// user who can write it can falsify the simulation, nothing else; keep it in a folder of the test or demo at hand.
//
// Package mps holds the program that answers as nvidia-cuda-mps-control.
package gpusim

// StateEnv is the environment variable that names the state file.
const StateEnv = "GPUSIM_STATE"
