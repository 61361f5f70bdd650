package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec" //nolint:depguard // programs are looked for
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// choose finds the GPU and the programs that no flag names, and lists why this machine isn't fit.
func (k *check) choose() (why []string) {
	// of borrowed machines and containers
	_ = os.Setenv("PATH", os.Getenv("PATH")+":/usr/local/nvidia/bin:/usr/local/cuda/bin")
	// Without it there is still something to be seen.
	k.control, _ = exec.LookPath(k.control)
	if all := processes(k.proc, "nvidia-cuda-mps-"); len(all) > 0 { // of any user
		why = append(why, fmt.Sprintf("an MPS program runs here already (process %d): end it first, or use another machine",
			all[0].PID))
	}
	var err error
	if k.card, err = pick(k.library, k.gpu); err != nil {
		return append(why, err.Error())
	}
	return append(why, k.card.unfit()...)
}

// processes are the processes whose program's name begins with name.
func processes(proc, name string) []procfs.Proc {
	fs, _ := procfs.NewFS(proc)
	all, _ := fs.AllProcs()
	return slices.DeleteFunc(all, func(p procfs.Proc) bool {
		argv, _ := p.CmdLine() // it may have ended
		return len(argv) == 0 || !strings.HasPrefix(filepath.Base(argv[0]), name)
	})
}

// card is the GPU to be checked.
type card struct {
	nvml.Device
	lib     *nvml.Library
	visible string // CUDA_VISIBLE_DEVICES of its clients
	idle    rlcore.Use
	starts  time.Duration // how long an MPS server may take to start on it
}

// pick finds a GPU by NVML's index or UUID.
func pick(library, which string) (*card, error) {
	lib, err := nvml.Open(library)
	if err != nil && library == "" {
		lib, err = nvml.Open(inFolders("libnvidia-ml.so.1"))
	}
	if err != nil {
		return nil, fmt.Errorf("there is no NVIDIA driver, or no GPU: %w", err)
	}
	for _, d := range lib.Devices() {
		if which == d.UUID || which == strconv.Itoa(d.Index) {
			return &card{Device: d, lib: lib, visible: d.UUID, starts: 10 * time.Second}, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("there is no GPU %.64q; NVML has %d", which, len(lib.Devices())), lib.Close())
}

// Use beyond which a GPU counts as busy. Drivers keep some hundred MiB for themselves.
const (
	busyGPU  = 0.05
	busyMiB  = 1024
	busyPart = 0.03 // of the card's memory, if that is more
)

// unfit lists why a GPU can't be checked now. It leaves the use of the idle GPU in c.
func (c *card) unfit() (why []string) {
	refuse := func(format string, args ...any) { why = append(why, fmt.Sprintf(format, args...)) }
	if c.MIG.On {
		refuse("the GPU is in MIG mode, which this check neither knows nor changes")
	}
	if list, err := c.Processes(); err == nil && len(list) > 0 {
		refuse("the GPU is in use: process %d computes on it (%d in all)", list[0].PID, len(list))
	}
	if c.Lost != "" {
		refuse("NVML has lost the GPU: %s", c.Lost)
	}
	var err error
	if c.idle, err = c.read(); err != nil {
		refuse("NVML doesn't read the GPU: %v", err)
	}
	if c.idle.GPU > busyGPU || c.idle.MemMiB > max(busyMiB, busyPart*c.MemMiB) {
		refuse("the GPU is in use: %.0f %% busy, %.0f MiB held", 100*c.idle.GPU, c.idle.MemMiB)
	}
	return why
}
