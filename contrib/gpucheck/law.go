package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

// Kernel is an application with a known demand.
type Kernel struct {
	Name   string
	Source string // of its work: a load
	// Duty is the part of an iteration, alone, in which the GPU is at work; the
	// host sleeps for the rest.
	Duty   float64
	Period time.Duration // of an iteration when alone, about
	SMs    float64       // part of the SMs that its kernels use, 0..1
	MemMiB float64       // device memory that it allocates; 0 = next to nothing
	// Copies: its work is copies over PCIe, for which no kernel runs.
	Copies bool

	work float64 // units of work in an iteration; 0 = not known yet
}

// busy is how long the GPU is at work in an iteration alone.
func (k *Kernel) busy() time.Duration { return time.Duration(k.Duty * float64(k.Period)) }

// catalogue returns the kernels for a card, nil = one of 16 GiB: the named ones, or all.
func catalogue(c *card, names []string) ([]*Kernel, error) {
	mem := 16384.0
	if c != nil {
		mem = c.MemMiB
	}
	ms := time.Millisecond
	all := []*Kernel{
		{Name: "compute", Source: "compute", Duty: 1, Period: 5 * ms, SMs: 1},
		{Name: "narrow", Source: "compute", Duty: 1, Period: 5 * ms, SMs: 0.25},
		{Name: "memory", Source: "memory", Duty: 1, Period: 5 * ms, SMs: 1, MemMiB: 512},
		{Name: "pcie", Source: "pcie", Duty: 1, Period: 20 * ms, SMs: 1, Copies: true},
		{Name: "bursty", Source: "compute", Duty: 0.3, Period: 200 * ms, SMs: 1},
		{Name: "hungry", Source: "memory", Duty: 0.5, Period: 20 * ms, SMs: 1, MemMiB: math.Floor(0.3*mem/256) * 256},
	}
	some := slices.DeleteFunc(slices.Clone(all),
		func(k *Kernel) bool { return len(names) > 0 && !slices.Contains(names, k.Name) })
	if len(names) > 0 && len(some) != len(names) {
		known := ""
		for _, k := range all {
			known += " " + k.Name
		}
		return nil, fmt.Errorf("--kernels %.100q: there are%s, each once", names, known)
	}
	return some, nil
}

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
func (o *options) trials(c *card, kernels []*Kernel) (out []situation) {
	law := &contention.TimeSlice
	if o.control != "" {
		law = &contention.MPS
	}
	model, spec := interference.New(law), &rlcore.GPUSpec{Model: c.Model, PCIeMBps: c.PCIeMBps}
	alone := map[string]*Alone{}
	for _, k := range kernels {
		out = append(out, situation{k.Name, func(ctx context.Context, s *stage) error {
			ran, err := s.try(ctx, o.duration, k)
			if err == nil {
				alone[k.Name] = k.alone(ran[0], meanOf(s.looks), s.card.idle.MemMiB)
				s.facts["alone"] = alone[k.Name]
			}
			return err
		}})
	}
	for i, k := range kernels {
		for _, other := range kernels[i:] {
			out = append(out, situation{k.Name + " + " + other.Name, func(ctx context.Context, s *stage) error {
				a, b := alone[k.Name], alone[other.Name]
				if a == nil || b == nil {
					return errors.New("one of them has failed alone")
				}
				ran, err := s.try(ctx, o.duration, k, other)
				if err != nil {
					return err
				}
				var want [2]rlcore.Prediction
				model.Predict(want[:], spec, []*rlcore.Profile{a.profile(), b.profile()})
				s.facts["sharing"], s.facts["pair"] = law.Name, []Slowed{
					{k.Name, other.Name, 1 / (a.StepS * ran[0].rate()), want[0].Slowdown},
					{other.Name, k.Name, 1 / (b.StepS * ran[1].rate()), want[1].Slowdown},
				}
				return nil
			}})
		}
	}
	return out
}

// try has kernels iterate at the same time, under an MPS daemon where there is one, until the situation's time is over
// or for so long. It returns what each says at its end.
func (s *stage) try(ctx context.Context, most time.Duration, kernels ...*Kernel) ([]ended, error) {
	if s.control != "" {
		if err := s.start(ctx); err != nil {
			return nil, err
		}
		s.serve(ctx, os.Getuid())
	}
	var ran []ended
	for _, k := range kernels {
		args := fmt.Sprintf("--kernel %s --mem-mib %g --work %.0f", k.Name, k.MemMiB, k.work)
		c := s.connect(ctx, k.Name, clientOptions{visible: s.card.visible, args: strings.Fields(args), wait: time.Minute})
		switch why := c.first.failure(); {
		case why != "":
			return nil, fmt.Errorf("%s: %s", k.Name, why)
		case c.first.Work < 1:
			return nil, fmt.Errorf("%s: it isn't ready", k.Name)
		}
		k.work = c.first.Work
		ran = append(ran, ended{k: k, c: c})
	}
	if s.control != "" {
		said, err := s.ask(ctx, fmt.Sprintf("get_client_list %d", s.server(ctx)))
		if n := len(strings.Fields(said)); err != nil || n < len(kernels) {
			return nil, errors.Join(err, fmt.Errorf("the MPS daemon has %d clients, not %d: these would take turns", n,
				len(kernels)))
		}
	}
	lasts := most
	if end, limited := ctx.Deadline(); limited {
		lasts = min(most, time.Until(end)-ending)
	}
	if lasts < min(most, leastTrial) {
		return nil, errors.New("no time was left for it")
	}
	// The first tenth of the time, in which clocks rise, doesn't count.
	err := s.iterate(ctx, ran, lasts/10)
	if err == nil {
		err = s.iterate(ctx, ran, lasts*9/10)
	}
	return ran, err
}

// ended is a kernel's client, with what it said at the end of its iterations.
type ended struct {
	k *Kernel
	c *client
	answer
}

// rate is its iterations a second.
func (e *ended) rate() float64 { return float64(e.N) / e.Seconds }

// iterate has all kernels iterate for so long, and takes down what each says then.
func (s *stage) iterate(ctx context.Context, ran []ended, lasts time.Duration) (err error) {
	for _, r := range ran {
		s.tell(r.c, fmt.Sprintf("run %g %g", r.k.Duty, float64(r.k.Period)/float64(time.Millisecond)))
	}
	s.looks = s.look(ctx, lasts, func(pid int) string { return fmt.Sprint(pid) })
	s.facts["looks"] = s.looks
	for i, r := range ran {
		s.tell(r.c, "stop")
		ran[i].answer = s.answer(ctx, r.c, time.Minute)
		if why := ran[i].failure(); why != "" {
			err = errors.Join(err, fmt.Errorf("%s: %s", r.k.Name, why))
		} else if ran[i].N == 0 {
			err = errors.Join(err, fmt.Errorf("%s: it has not iterated", r.k.Name))
		}
	}
	return err
}

// alone are the figures of a kernel that ran alone, with the mean of the looks at the card.
func (k *Kernel) alone(end ended, seen sampled, idleMiB float64) *Alone {
	asked := rlcore.Use{MemMiB: end.c.first.HeldMiB, PCIeMBps: end.rate() * end.c.first.StepMB}
	if !k.Copies {
		asked.GPU = min(1, end.BusyS/end.Seconds)
		asked.Core = asked.GPU * k.SMs
	}
	if seen.SM < 0 {
		seen.SM = seen.GPU // an upper bound
	}
	return &Alone{
		Asked: asked, DurationS: end.Seconds, StepS: 1 / end.rate(),
		Measured: rlcore.Use{
			GPU: seen.GPU, Core: seen.SM, PCIeMBps: seen.PCIeMBps, MemMiB: max(0, seen.MemMiB-idleMiB),
		},
	}
}

// sampled is one look at the card.
type sampled struct {
	T        float64            `json:"t"`
	GPU      float64            `json:"gpu"`
	SM       float64            `json:"sm"` // GPM, −1 = not given
	MemMiB   float64            `json:"mem_mib"`
	PCIeMBps float64            `json:"pcie_mbps"`
	ByPID    map[string]float64 `json:"by_pid"`
	Newer    int                `json:"newer"` // samples of processes since the last look
}

// read is what the card does at this moment, as a whole.
func (c *card) read() (s sampled, err error) {
	s.GPU, _, err = c.Utilisation()
	mem, merr := c.Read(nvml.Memory)
	s.MemMiB = mem
	s.PCIeMBps, _ = c.PCIe()
	return s, errors.Join(err, merr)
}

// look reads the card for so long, five times a second. who names processes.
func (s *stage) look(ctx context.Context, lasts time.Duration, who func(pid int) string) (rows []sampled) {
	names, since, begin := map[int]string{}, time.Now(), time.Now()
	for end := begin.Add(s.long(lasts)); time.Now().Before(end) && ctx.Err() == nil; {
		row, err := s.card.read()
		if err != nil {
			s.note("the card isn't read: %v", err)
		}
		row.T, row.SM, row.ByPID = time.Since(begin).Seconds(), -1, map[string]float64{}
		if act, err := s.card.Activity(); err == nil {
			row.SM = act.SM
		}
		uses, err := s.card.ProcessUtilisation(since)
		if err != nil {
			s.note("process utilisation: %v", err)
		}
		for _, u := range uses {
			if names[u.PID] == "" {
				names[u.PID] = who(u.PID)
			}
			row.ByPID[names[u.PID]] = u.SM
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
	m, n := sampled{ByPID: map[string]float64{}}, 0.0
	for _, r := range rows {
		if r.T < rows[len(rows)-1].T/6 {
			continue
		}
		n++
		m.GPU += r.GPU
		m.SM += r.SM
		m.PCIeMBps += r.PCIeMBps
		m.MemMiB = max(m.MemMiB, r.MemMiB)
		m.Newer += r.Newer
		for who, v := range r.ByPID {
			m.ByPID[who] += v
		}
	}
	n = max(1, n)
	for who := range m.ByPID {
		m.ByPID[who] /= n
	}
	m.GPU, m.SM, m.PCIeMBps = m.GPU/n, m.SM/n, m.PCIeMBps/n
	return m
}
