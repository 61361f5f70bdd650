package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec" //nolint:depguard // programs are looked for
	"path/filepath"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// pick finds a GPU by NVML's index or UUID.
func pick(library, which string) (*card, error) {
	lib, err := nvml.Open(library)
	if err != nil {
		return nil, fmt.Errorf("there is no NVIDIA driver, or no GPU: %w", err)
	}
	devices := lib.Devices()
	for _, d := range devices {
		if which != d.UUID && which != strconv.Itoa(d.Index) {
			continue
		}
		c := &card{Device: d, lib: lib}
		for _, o := range devices {
			if o.Minor < d.Minor {
				c.order++
			}
		}
		return c, nil
	}
	return nil, errors.Join(fmt.Errorf("there is no GPU %.64q; NVML has %d", which, len(devices)), lib.Close())
}

// Use beyond which a GPU counts as busy. Drivers keep some hundred MiB for themselves.
const (
	busyGPU  = 0.05
	busyMiB  = 1024
	busyPart = 0.03 // of the card's memory, if that is more
	looks    = 5    // at the use, a little apart
)

// unfit lists why a GPU can't be checked now. It leaves the use of the idle GPU in c.
func (c *card) unfit() []string {
	var why []string
	if c.MIG.On {
		why = append(why, "the GPU is in MIG mode, which this check neither knows nor changes")
	}
	if on, err := prolog.List(prolog.Dir(prolog.DefaultRunDir).Jobs()); err == nil {
		if on = prolog.Sharers(on, c.order); len(on) > 0 {
			why = append(why, fmt.Sprintf("the GPU is in use: Slurm's job %d is on it", on[0].JobID))
		}
	}
	if list, err := c.Processes(); err == nil && len(list) > 0 {
		why = append(why, fmt.Sprintf("the GPU is in use: process %d computes on it (%d in all)", list[0].PID, len(list)))
	}
	var most nvml.Sample
	for i := range looks {
		if i > 0 {
			time.Sleep(200 * time.Millisecond)
		}
		s, err := c.Sample()
		if err != nil {
			return append(why, "NVML doesn't read the GPU: "+err.Error())
		}
		most.GPU, most.MemMiB = max(most.GPU, s.GPU), max(most.MemMiB, s.MemMiB)
		c.idle = s
	}
	if most.GPU > busyGPU || most.MemMiB > max(busyMiB, busyPart*c.MemMiB) {
		why = append(why, fmt.Sprintf("the GPU is in use: %.0f %% busy, %.0f MiB held", 100*most.GPU, most.MemMiB))
	}
	return why
}

// mpsRunning returns the pid of any user's MPS program on this machine, 0 = none.
func mpsRunning(proc string) int {
	lines, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "cmdline"))
	for _, path := range lines {
		line, _ := os.ReadFile(path) // it may have ended
		program, _, _ := bytes.Cut(line, []byte{0})
		switch filepath.Base(string(program)) {
		case "nvidia-cuda-mps-control", "nvidia-cuda-mps-server":
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			return pid
		}
	}
	return 0
}

// found returns a program's path: as given, or the first of the names that there is; "" = none.
func found(given string, names ...string) string {
	if given != "" {
		return given
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}
