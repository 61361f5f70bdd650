package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// errRefused: the machine isn't fit for it now. Nothing was touched.
var errRefused = errors.New("refused")

// card is the GPU to be checked.
type card struct {
	nvml.Device
	at    int // in the library's list
	order int // among the device files, as gres.conf and the agent count
	idle  nvml.Sample
}

// pick finds a GPU by NVML's index or UUID.
func pick(lib nvml.Library, which string) (card, error) {
	devices := lib.Devices()
	for at, d := range devices {
		if which != d.UUID && which != strconv.Itoa(d.Index) {
			continue
		}
		c := card{Device: d, at: at}
		for _, o := range devices {
			if o.Minor < d.Minor {
				c.order++
			}
		}
		return c, nil
	}
	return card{}, fmt.Errorf("there is no GPU %.64q; NVML has %d", which, len(devices))
}

// Use beyond which a GPU counts as busy.
const (
	busyGPU  = 0.05
	busyMiB  = 1024 // drivers keep some hundred MiB for themselves
	busyPart = 0.03 // of the card's memory, if that is more
)

// unfit lists why a GPU can't be checked now; looks are how often, a little apart,
// its use is read. It leaves the use of the idle GPU in c.
func unfit(lib nvml.Library, c *card, looks int) []string {
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
		s, err := lib.Sample(c.at)
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

// mpsRunning returns the pid of an MPS program on this machine, 0 = none. Every
// user's are seen.
func mpsRunning(proc string) int {
	entries, err := os.ReadDir(proc)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join(proc, e.Name(), "cmdline"))
		if err != nil {
			continue
		}
		program, _, _ := bytes.Cut(line, []byte{0})
		switch filepath.Base(string(program)) {
		case "nvidia-cuda-mps-control", "nvidia-cuda-mps-server":
			return pid
		}
	}
	return 0
}
