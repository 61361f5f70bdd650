package models

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// Rules are the settings that decisions keep to.
type Rules struct {
	// Objective is what networks learn and are judged by; "" (in files of earlier releases) =
	// the turnaround.
	Objective   policy.Objective `json:"objective,omitempty"`
	Window      int              `json:"window"`
	MaxGroup    int              `json:"max_group"`
	MemMargin   float64          `json:"memory_margin"`
	MaxDelayS   float64          `json:"max_delay_s"`
	MaxSlowdown float64          `json:"max_slowdown"`
	Grace       float64          `json:"grace"`
	Trust       float64          `json:"trust"`
}

// aim is the objective.
func (r *Rules) aim() policy.Objective { return cmp.Or(r.Objective, policy.Turnaround) }

// guard makes a guard that keeps to the rules.
func (r *Rules) guard(p rlcore.Predictor) *rlcore.Guard {
	return &rlcore.Guard{
		Predictor: p, MemMargin: r.MemMargin, MaxMembers: r.MaxGroup,
		MaxDelayS: r.MaxDelayS, MaxSlowdown: r.MaxSlowdown, Grace: r.Grace, Trust: r.Trust,
	}
}

// Job is one run of the mix.
type Job struct {
	User    string  `json:"user"`
	Profile int     `json:"profile"`  // in Mix.Profiles; -1 = nothing is known of its application
	ArriveS float64 `json:"arrive_s"` // since Mix.From
	SoloS   float64 `json:"solo_s"`   // how long it takes alone
	// The owner's terms.
	NoShare     bool    `json:"no_share,omitempty"`
	MaxSlowdown float64 `json:"max_slowdown,omitempty"`
	Array       string  `json:"array,omitempty"`
	ArrayOnly   bool    `json:"array_only,omitempty"`
}

// Slice is some GPUs of one kind with the jobs that really ran on them, in the
// order of their arrival: a small cluster as busy as the site is.
type Slice struct {
	Card rlcore.GPUSpec `json:"card"`
	GPUs int            `json:"gpus"`
	Jobs []Job          `json:"jobs"`
	// Split is the first job that training doesn't see.
	Split int `json:"split"`
}

// Mix is what a site ran in some days, with what was believed of its applications
// and of slowdowns at their end.
type Mix struct {
	Version  int               `json:"version"`
	From     time.Time         `json:"from"`
	Split    time.Time         `json:"split"`
	To       time.Time         `json:"to"`
	Rules    Rules             `json:"rules"`
	Slices   []Slice           `json:"slices"`
	Profiles []*rlcore.Profile `json:"profiles"`
	Outcomes []history.Outcome `json:"outcomes"` // those that teach something
	Guessed  int               `json:"guessed_arrivals"`
	LeftOut  map[string]int    `json:"left_out"`
}

const mixVersion = 1

// Sizes counts the runs before and after the split.
func (m *Mix) Sizes() (learn, held int) {
	for i := range m.Slices {
		learn += m.Slices[i].Split
		held += len(m.Slices[i].Jobs) - m.Slices[i].Split
	}
	return learn, held
}

// Encode writes a mix; the same mix is the same bytes.
func (m *Mix) Encode() ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if err := errors.Join(json.NewEncoder(z).Encode(m), z.Close()); err != nil {
		return nil, fmt.Errorf("write mix: %w", err)
	}
	return b.Bytes(), nil
}

// DecodeMix reads what Encode wrote, and checks that it can be played.
func DecodeMix(text []byte) (*Mix, error) {
	z, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("read mix: %w", err)
	}
	plain, err := io.ReadAll(io.LimitReader(z, mostBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read mix: %w", err)
	}
	if len(plain) > mostBytes {
		return nil, fmt.Errorf("read mix: it is larger than %d bytes", mostBytes)
	}
	m := &Mix{}
	if err := json.Unmarshal(plain, m); err != nil {
		return nil, fmt.Errorf("read mix: %w", err)
	}
	if err := m.validate(); err != nil {
		return nil, fmt.Errorf("read mix: %w", err)
	}
	return m, nil
}

func (m *Mix) validate() error {
	if m.Version != mixVersion {
		return fmt.Errorf("it is of version %d, this program reads %d", m.Version, mixVersion)
	}
	if m.Rules.Window < 1 || m.Rules.Window > rlcore.MaxWindow {
		return fmt.Errorf("a window of %d, not 1 to %d", m.Rules.Window, rlcore.MaxWindow)
	}
	for _, p := range m.Profiles {
		if p == nil {
			return errors.New("a profile is missing")
		}
		if err := p.Validate(); err != nil {
			return err
		}
	}
	positive := func(v float64) bool { return v > 0 && !math.IsInf(v, 0) }
	for i := range m.Slices {
		s := &m.Slices[i]
		if s.GPUs < 1 || s.GPUs > sliceGPUs || !positive(s.Card.MemMiB) || s.Split < 0 || s.Split > len(s.Jobs) {
			return fmt.Errorf("slice %d: %d GPUs of %v MiB, split at %d of %d", i, s.GPUs, s.Card.MemMiB, s.Split, len(s.Jobs))
		}
		last := math.Inf(-1)
		for k := range s.Jobs {
			j := &s.Jobs[k]
			if !positive(j.SoloS) || !(j.ArriveS >= last) || math.IsInf(j.ArriveS, 0) || j.Profile < -1 || j.Profile >= len(m.Profiles) {
				return fmt.Errorf("slice %d, job %d can't be", i, k)
			}
			last = j.ArriveS
		}
	}
	return nil
}
