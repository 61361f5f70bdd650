// Package app runs an application on the simulated GPU: the process finds its GPU as a CUDA program does, follows a
// profile and ends when its work is done.
package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/google/renameio/v2"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/mps"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Error is how a CUDA program says that it can't go on.
type Error struct {
	Exit int // exit status, as `gpusim run --help` documents it
	Text string
}

// Error returns CUDA's message.
func (e *Error) Error() string { return "CUDA error: " + e.Text }

// A fault ends the program: errFaulted is another MPS client's fault, errAddress the program's own.
var errFaulted, errAddress = errors.New("another client's fault"), errors.New("its own fault")

// errorsOfCUDA are the errors that a CUDA program prints and exits with for the simulator's errors.
var errorsOfCUDA = map[error]*Error{
	gpusim.ErrOOM:        {2, "out of memory (cudaErrorMemoryAllocation)"},
	gpusim.ErrExclusive:  {1, "all CUDA-capable devices are busy or unavailable (cudaErrorDevicesUnavailable)"},
	gpusim.ErrLost:       {1, "the GPU is lost (cudaErrorDevicesUnavailable)"},
	gpusim.ErrNoInstance: {1, "no CUDA-capable device is detected (cudaErrorNoDevice)"},
	gpusim.ErrGone:       {4, "context is destroyed (cudaErrorContextIsDestroyed)"},
	errFaulted:           {4, "unspecified launch failure (cudaErrorLaunchFailure)"},
	errAddress:           {4, "an illegal memory access was encountered (cudaErrorIllegalAddress)"},
	mps.ErrRefused:       {3, mps.ErrRefused.Error()},
}

// Config is one run.
type Config struct {
	State   string // path of the state file; "" = $GPUSIM_STATE
	Report  string // path of the report; "" = standard output, at the end
	Profile *rlcore.Profile
	// FaultAtS is the GPU time after which a kernel of the program faults, s; 0 = never.
	FaultAtS float64
	// Preallocate is the part of the visible memory (the card's, or the MPS limit) that the program allocates at its
	// start and keeps, as JAX does; 0 = it allocates the memory of its profile.
	Preallocate float64
}

// Report is a run's result, one line of JSON.
type Report struct {
	App      string  `json:"app"`
	Status   string  `json:"status"` // finished, oom, fault, running (it still runs, or was killed)
	Device   string  `json:"device"` // UUID
	Index    int     `json:"index"`  // NVML's
	MPS      bool    `json:"mps"`
	StartS   float64 `json:"start_s"`  // on the GPU's clock
	GPUS     float64 `json:"gpu_s"`    // run time on the GPU's clock
	SoloS    float64 `json:"solo_s"`   // run time alone on the GPU
	Slowdown float64 `json:"slowdown"` // run time ÷ solo time of the work done
}

// longestNap is the longest real time between two looks at a program's progress. With the next look the program learns
// of other processes' effects, such as a fault of its MPS server. Outcomes don't depend on longestNap: the device
// advances from event to event.
const longestNap = 200 * time.Millisecond

// Run runs the application to its end and writes its report. A report file is also written when the computation begins.
func Run(cfg Config) error {
	rep := Report{App: cfg.Profile.App, SoloS: cfg.Profile.DurationS, Status: gpusim.Running.String()}
	err := compute(&cfg, &rep)
	for known, said := range errorsOfCUDA {
		if errors.Is(err, known) {
			err = said
		}
	}
	return errors.Join(err, rep.write(cfg.Report))
}

func (r *Report) write(path string) error {
	line, err := json.Marshal(r)
	switch line = append(line, '\n'); {
	case err != nil:
	case path == "":
		_, err = os.Stdout.Write(line)
	default:
		err = renameio.WriteFile(path, line, 0o644)
	}
	return err
}

// compute connects to the MPS server, if there is one, takes a place on the GPU and follows the profile there.
func compute(cfg *Config, rep *Report) error {
	st, err := gpusim.Open(cfg.State)
	if err != nil {
		return err
	}
	defer st.Close()
	claimant := gpusim.Claimant{UID: os.Getuid()}
	var served []string
	client, err := mps.Connect(context.Background(), os.Getenv)
	if err == nil {
		defer client.Close()
		rep.MPS, claimant.Server, served = true, client.Server, client.Devices
	} else if !errors.Is(err, mps.ErrNoDaemon) { // without a control daemon the program computes without MPS
		return err
	}
	all := st.Visible(served)
	if len(all) == 0 {
		return gpusim.ErrNoInstance
	}
	dev := all[0]
	rep.Device, rep.Index, claimant.Instance = dev.Name(), dev.Index(), dev.Instance
	if rep.MPS && !dev.SameUser() {
		claimant.Limits, err = gpusim.ParseLimits(os.Getenv(mps.MemLimitEnv), os.Getenv(mps.ThreadsEnv))
		if err != nil {
			return &Error{3, err.Error() + ": invalid argument (cudaErrorInvalidValue)"}
		}
	}
	if cfg.Preallocate > 0 {
		cfg.Profile = preallocated(cfg.Profile, cfg.Preallocate*cmp.Or(claimant.Limits.MemMiB, dev.MemMiB()))
	}
	slot, err := dev.Claim(claimant, cfg.Profile)
	if errors.Is(err, gpusim.ErrOOM) {
		rep.Status = gpusim.OOM.String()
	}
	if err != nil {
		return err
	}
	defer func() { _ = slot.Release() }()
	return cfg.follow(rep, st.Scale(), slot, client)
}

// follow waits until the program's work is done, or a fault ends the program.
func (c *Config) follow(rep *Report, scale float64, slot *gpusim.Slot, client *mps.Client) error {
	for begun := false; ; begun = true {
		p, err := slot.Progress()
		if err != nil {
			rep.Status = gpusim.Faulted.String()
			return err
		}
		rep.fill(&p)
		switch p.Status {
		case gpusim.Finished:
			return nil
		case gpusim.OOM:
			return gpusim.ErrOOM
		case gpusim.Faulted:
			return errFaulted
		}
		// The work can't be done sooner than if the program had the GPU to itself from now on.
		soonS := p.DurationS - p.DoneS
		if c.FaultAtS > 0 {
			soonS = min(soonS, c.FaultAtS-rep.GPUS)
			if rep.GPUS >= c.FaultAtS {
				rep.Status = gpusim.Faulted.String()
				err := slot.Fault()
				if client != nil {
					client.Fault()
				}
				return errors.Join(errAddress, err)
			}
		}
		if c.Report != "" && !begun {
			if err := rep.write(c.Report); err != nil {
				return err
			}
		}
		soon := time.Duration(soonS / scale * float64(time.Second))
		time.Sleep(min(max(soon, time.Millisecond), longestNap))
	}
}

func (r *Report) fill(p *gpusim.Process) {
	r.Status, r.StartS, r.GPUS = p.Status.String(), p.StartT, p.EndT-p.StartT
	if done := p.DoneS / p.DurationS * r.SoloS; done > 0 { // in seconds of the run without limits
		r.Slowdown = r.GPUS / done
	}
}

// preallocated returns the profile of a run that holds mib MiB of memory all the time, and fails where the given
// profile needs more.
func preallocated(p *rlcore.Profile, mib float64) *rlcore.Profile {
	q := Scaled(p, 1, 1)
	for i := range q.Series {
		u := &q.Series[i]
		if u.MemMiB > mib {
			mib = gpusim.TooMuch
		}
		u.MemMiB = mib
	}
	return q
}

// Scaled returns the profile of a run of `duration` times the length and `memory` times the memory.
func Scaled(p *rlcore.Profile, duration, memory float64) *rlcore.Profile {
	q := *p
	q.DurationS *= duration
	q.PeriodS *= duration
	q.Series = slices.Clone(p.Series)
	for i := range q.Series {
		q.Series[i].MemMiB *= memory
	}
	return &q
}
