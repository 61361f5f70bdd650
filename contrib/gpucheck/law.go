package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

// Alone is a kernel alone: the load that it put on the GPU, by its own clock and count, and what NVML reported of it.
type Alone struct {
	Asked     rlcore.Use `json:"asked"`
	Measured  rlcore.Use `json:"measured"`
	DurationS float64    `json:"duration_s"`
	StepS     float64    `json:"step_s"`
}

// profile is what the law predicts from.
func (a *Alone) profile() *rlcore.Profile {
	return &rlcore.Profile{DurationS: a.DurationS, PeriodS: a.DurationS, Series: []rlcore.Use{a.Measured}, StepS: a.StepS}
}

// Slowed is a kernel next to another: its speed alone over its speed there, as measured and as the simulator's law for
// this card's link predicts it from what was measured of each alone.
type Slowed struct {
	Kernel   string  `json:"kernel"`
	Beside   string  `json:"beside"`
	Slowdown float64 `json:"slowdown"`
	Law      float64 `json:"law"`
}

// leastTrial is the shortest trial that says anything: NVML's utilisation is that of up to a second before.
const leastTrial = 3 * time.Second

// ending is the time that a trial keeps for its end.
const ending = time.Second

// trials are each kernel alone, which finds its work, and then all pairs.
func (k *check) trials(kernels []*Kernel) (out []situation) {
	law, daemon := &contention.TimeSlice, []string(nil)
	if k.control != "" {
		law, daemon = &contention.MPS, usual
	}
	model, spec := interference.New(law), &rlcore.GPUSpec{Model: k.card.Model, PCIeMBps: k.card.PCIeMBps}
	alone, pairs := map[string]*Alone{}, []situation(nil)
	for i, a := range kernels {
		out = append(out, situation{a.Name, daemon, func(ctx context.Context, s *stage) error {
			ran, err := s.try(ctx, a)
			if err == nil {
				alone[a.Name] = a.alone(ran[0], meanOf(s.looks), s.card.idle.MemMiB)
				s.facts["alone"] = alone[a.Name]
			}
			return err
		}})
		for _, b := range kernels[i:] {
			pairs = append(pairs, situation{a.Name + " + " + b.Name, daemon, func(ctx context.Context, s *stage) error {
				x, y := alone[a.Name], alone[b.Name]
				if x == nil || y == nil {
					return errors.New("one of them has failed alone")
				}
				ran, err := s.try(ctx, a, b)
				if err != nil {
					return err
				}
				var want [2]rlcore.Prediction
				model.Predict(want[:], spec, []*rlcore.Profile{x.profile(), y.profile()})
				s.facts["sharing"], s.facts["pair"] = law.Name, []Slowed{
					{a.Name, b.Name, 1 / (x.StepS * ran[0].last.rate()), want[0].Slowdown},
					{b.Name, a.Name, 1 / (y.StepS * ran[1].last.rate()), want[1].Slowdown},
				}
				return nil
			}})
		}
	}
	return append(out, pairs...)
}

// try has kernels iterate at the same time until the situation's time is over, or for as long as a trial lasts at most.
// It returns their clients.
func (s *stage) try(ctx context.Context, kernels ...*Kernel) (ran []*client, err error) {
	for _, k := range kernels {
		c := s.connect(ctx, k.Name, clientOptions{visible: s.card.visible, kernel: k, wait: time.Minute})
		switch why := c.first.failure(); {
		case why != "":
			return nil, fmt.Errorf("%s: %s", k.Name, why)
		case c.first.Work < 1:
			return nil, fmt.Errorf("%s: it isn't ready", k.Name)
		}
		k.Work = c.first.Work
		ran = append(ran, c)
	}
	if s.control != "" {
		said, err := s.ask(ctx, fmt.Sprintf("get_client_list %d", s.server(ctx)))
		if n := len(strings.Fields(said)); err != nil || n < len(kernels) {
			return nil, errors.Join(err, fmt.Errorf("the MPS daemon has %d clients, not %d: these would take turns", n,
				len(kernels)))
		}
	}
	lasts := s.duration
	if end, limited := ctx.Deadline(); limited {
		lasts = min(lasts, time.Until(end)-ending)
	}
	if lasts < min(s.duration, leastTrial) {
		return nil, errors.New("no time was left for it")
	}
	// The first tenth of the time, in which clocks rise, doesn't count.
	if err := s.iterate(ctx, kernels, ran, lasts/10); err != nil {
		return nil, err
	}
	return ran, s.iterate(ctx, kernels, ran, lasts*9/10)
}

// iterate has all kernels iterate for so long; their clients' last answers say how that went.
func (s *stage) iterate(ctx context.Context, kernels []*Kernel, ran []*client, lasts time.Duration) (err error) {
	for i, c := range ran {
		s.tell(c, kernels[i].run(kernels[i].Duty))
	}
	s.looks = s.look(ctx, lasts)
	s.facts["looks"] = s.looks
	for _, c := range ran {
		a := s.stop(ctx, c, time.Minute)
		if why := a.failure(); why != "" {
			err = errors.Join(err, fmt.Errorf("%s: %s", c.name, why))
		} else if a.N == 0 {
			err = errors.Join(err, fmt.Errorf("%s: it has not iterated", c.name))
		}
	}
	return err
}

// alone are the figures of a kernel that ran alone, with the mean of the looks at the card.
func (k *Kernel) alone(c *client, seen sampled, idleMiB float64) *Alone {
	asked := rlcore.Use{MemMiB: c.first.HeldMiB, PCIeMBps: c.last.rate() * c.first.StepMB}
	if k.Source != "pcie" {
		asked.GPU = min(1, c.last.BusyS/c.last.Seconds)
		asked.Core = asked.GPU * k.SMs
	}
	if seen.Core < 0 {
		seen.Core = seen.GPU // an upper bound
	}
	seen.MemMiB = max(0, seen.MemMiB-idleMiB)
	return &Alone{Asked: asked, Measured: seen.Use, DurationS: c.last.Seconds, StepS: 1 / c.last.rate()}
}

// sampled is one look at the card.
type sampled struct {
	T          float64         `json:"t"` // s since the first
	rlcore.Use                 // core is GPM's, −1 = not given
	ByPID      map[int]float64 `json:"by_pid"` // processes' shares of the SMs
	Newer      int             `json:"newer"`  // samples of processes since the last look
}

// read is what the card does at this moment, as a whole.
func (c *card) read() (u rlcore.Use, err error) {
	var merr error
	u.GPU, _, err = c.Utilisation()
	u.MemMiB, merr = c.Memory()
	u.PCIeMBps, _ = c.PCIe()
	u.Core = -1
	if act, err := c.Activity(); err == nil {
		u.Core = act.SM
	}
	return u, errors.Join(err, merr)
}

// look reads the card for so long, five times a second.
func (s *stage) look(ctx context.Context, lasts time.Duration) (rows []sampled) {
	since, begin := time.Now(), time.Now()
	for end := begin.Add(s.long(lasts)); time.Now().Before(end) && ctx.Err() == nil; {
		row := sampled{T: time.Since(begin).Seconds(), ByPID: map[int]float64{}}
		var err error
		if row.Use, err = s.card.read(); err != nil {
			s.note("the card isn't read: %v", err)
		}
		uses, err := s.card.ProcessUtilisation(since)
		if err != nil {
			s.note("process utilisation: %v", err)
		}
		for _, u := range uses {
			row.ByPID[u.PID] = u.SM
			if u.At.After(since) {
				since = u.At
			}
		}
		row.Newer = len(uses)
		rows = append(rows, row)
		select {
		case <-ctx.Done():
		case <-time.After(min(200*time.Millisecond, time.Until(end))):
		}
	}
	return rows
}

// meanOf is the mean of looks without the first sixth, with the memory's largest: NVML's utilisation is that of up to a
// second before.
func meanOf(rows []sampled) sampled {
	rows = slices.DeleteFunc(slices.Clone(rows), func(r sampled) bool { return r.T < rows[len(rows)-1].T/6 })
	m := sampled{ByPID: map[int]float64{}}
	for _, r := range rows {
		n := float64(len(rows))
		m.GPU += r.GPU / n
		m.Core += r.Core / n
		m.PCIeMBps += r.PCIeMBps / n
		m.MemMiB = max(m.MemMiB, r.MemMiB)
		m.Newer += r.Newer
		for pid, v := range r.ByPID {
			m.ByPID[pid] += v / n
		}
	}
	return m
}
