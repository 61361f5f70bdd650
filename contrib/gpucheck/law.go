package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
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

// Report is what the kernels showed, as report.json has it.
type Report struct {
	Date string `json:"date"`
	// Card is as `gpuprof info` has it, IdleMiB what was in use before anything ran, which what is measured leaves out.
	Card    nvml.Device `json:"card"`
	IdleMiB float64     `json:"idle_mib"`
	// Simulated: there was no GPU; the figures say nothing of any card.
	Simulated bool           `json:"simulated"`
	Sharing   string         `json:"sharing"` // mps, or time-slice where there is no MPS
	Kernels   []KernelReport `json:"kernels"`
	Pairs     []PairReport   `json:"pairs"`
	// Law is `interference score`'s figures on the pairs, of the simulator's law on this card's link.
	Law      interference.Report `json:"law"`
	Failures []string            `json:"failures"`

	model    *interference.Model
	spec     *rlcore.GPUSpec
	alone    map[string]*rlcore.Profile // what each kernel is alone, with its seconds an iteration
	measured []interference.Pair
}

// KernelReport is a kernel alone: the load that it put on the GPU, by its own clock
// and count, and what NVML reported of it.
type KernelReport struct {
	Name      string     `json:"name"`
	Asked     rlcore.Use `json:"asked"`
	Measured  rlcore.Use `json:"measured"`
	DurationS float64    `json:"duration_s"`
	StepS     float64    `json:"step_s"`
}

// PairReport is a kernel next to another: its speed alone over its speed there, as measured and as the law predicts it
// from what was measured of each alone.
type PairReport struct {
	Kernel   string  `json:"kernel"`
	Beside   string  `json:"beside"`
	Slowdown float64 `json:"slowdown"`
	Law      float64 `json:"law"`
}

func newReport(c *card, mps bool) *Report {
	law := &contention.TimeSlice
	if mps {
		law = &contention.MPS
	}
	return &Report{
		Date: time.Now().UTC().Format(time.RFC3339), Card: c.Device, IdleMiB: c.idle.MemMiB, Simulated: simulated(),
		Sharing: law.Name, Kernels: []KernelReport{}, Pairs: []PairReport{}, Failures: []string{},
		model: interference.New(law), spec: &rlcore.GPUSpec{Model: c.Model, PCIeMBps: c.PCIeMBps},
		alone: map[string]*rlcore.Profile{},
	}
}

// trial is kernels that iterated at the same time, with what each said at its end and what NVML showed meanwhile.
type trial struct {
	kernels []*Kernel
	clients []*client
	ends    []answer
	looks   []sampled
}

// leastTrial is the shortest trial that says anything: NVML's utilisation is that of up to a second before.
const leastTrial = 3 * time.Second

// overhead is what a trial takes beyond its iterations, about, before one has shown it.
const overhead = 3 * time.Second

// trials are each kernel alone, which finds its work, and then all pairs.
func trials(kernels []*Kernel) (out [][]*Kernel) {
	for _, k := range kernels {
		out = append(out, []*Kernel{k})
	}
	for i, k := range kernels {
		for _, other := range kernels[i:] {
			out = append(out, []*Kernel{k, other})
		}
	}
	return out
}

// law plays the trials, each for an equal part of the time that is left, and writes each down as it ends. One that
// fails doesn't stop the rest: it ends its MPS daemon, on which the next ones might fail, too.
func (o *options) law(ctx context.Context, c *card, kernels []*Kernel, res *results) error {
	report := newReport(c, o.control != "")
	all, end, beyond := trials(kernels), time.Now().Add(o.lawFor), overhead
	var s *stage
	defer func() {
		if s != nil {
			s.end()
		}
	}()
	for n, of := range all {
		name, begin := of[0].Name, time.Now()
		if len(of) > 1 {
			if report.alone[of[0].Name] == nil || report.alone[of[1].Name] == nil {
				continue // it failed alone
			}
			name += " + " + of[1].Name
		}
		lasts := min(o.duration, time.Until(end)/time.Duration(len(all)-n)-beyond)
		if lasts < min(o.duration, leastTrial) {
			res.add(name, begin, nil, errors.New("no time was left for it"))
			continue
		}
		if s == nil {
			var err error
			if s, err = o.lawStage(ctx, c, res); err != nil {
				return err
			}
		}
		s.begin, s.events = begin, nil
		t, err := s.try(ctx, of, lasts)
		s.dismiss()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		beyond = max(0, time.Since(begin)-lasts)
		facts := map[string]any{"events": s.events}
		if err == nil {
			report.add(t)
			facts["ends"], facts["looks"] = t.ends, t.looks
		} else {
			report.Failures = append(report.Failures, name+": "+err.Error())
			s.end()
			s = nil
		}
		res.add(name, begin, facts, err)
		report.Law = interference.Score(report.model, report.spec, report.alone, report.measured)
		if err := cluster.WriteJSON(filepath.Join(res.folder, "report.json"), report); err != nil {
			return err
		}
	}
	return nil
}

// lawStage has an MPS daemon and a server for kernels. Without a control program they take turns.
func (o *options) lawStage(ctx context.Context, c *card, res *results) (*stage, error) {
	starts := 20 * time.Second
	s, err := o.newStage(c, res, "the law", &starts)
	if err != nil || s.control == "" {
		return s, err
	}
	if err := s.start(ctx); err != nil {
		return s, err
	}
	s.serve(ctx, os.Getuid())
	return s, nil
}

// try has kernels iterate at the same time.
func (s *stage) try(ctx context.Context, kernels []*Kernel, lasts time.Duration) (*trial, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute+4*lasts)
	defer cancel()
	t := &trial{kernels: kernels}
	for _, k := range kernels {
		args := fmt.Sprintf("--kernel %s --mem-mib %g --work %.0f", k.Name, k.MemMiB, k.work)
		c := s.connect(ctx, k.Name, clientOptions{visible: s.card.visible, args: strings.Fields(args), wait: time.Minute})
		switch why := c.first.failure(); {
		case why != "":
			return nil, fmt.Errorf("%s: %s", k.Name, why)
		case c.first.Work < 1:
			return nil, fmt.Errorf("%s: it isn't ready", k.Name)
		}
		t.clients, k.work = append(t.clients, c), c.first.Work
	}
	if s.control != "" {
		said, err := s.ask(ctx, fmt.Sprintf("get_client_list %d", s.server(ctx)))
		if n := len(strings.Fields(said)); err != nil || n < len(kernels) {
			return nil, errors.Join(err, fmt.Errorf("the MPS daemon has %d clients, not %d: these would take turns", n,
				len(kernels)))
		}
	}
	// The first tenth of the time, in which clocks rise, doesn't count.
	err := s.iterate(ctx, t, lasts/10)
	if err == nil {
		err = s.iterate(ctx, t, lasts*9/10)
	}
	return t, err
}

// iterate has all kernels iterate for so long, and takes down what each says then.
func (s *stage) iterate(ctx context.Context, t *trial, lasts time.Duration) (err error) {
	for i, k := range t.kernels {
		s.tell(t.clients[i], fmt.Sprintf("run %g %g", k.Duty, float64(k.Period)/float64(time.Millisecond)))
	}
	t.looks, t.ends = s.look(ctx, lasts, func(pid int) string { return fmt.Sprint(pid) }), nil
	for i, k := range t.kernels {
		s.tell(t.clients[i], "stop")
		end := s.answer(ctx, t.clients[i], time.Minute)
		if why := end.failure(); why != "" {
			err = errors.Join(err, fmt.Errorf("%s: %s", k.Name, why))
		} else if end.N == 0 {
			err = errors.Join(err, fmt.Errorf("%s: it has not iterated", k.Name))
		}
		t.ends = append(t.ends, end)
	}
	return err
}

// rate is the i-th kernel's iterations a second.
func (t *trial) rate(i int) float64 { return float64(t.ends[i].N) / t.ends[i].Seconds }

// asked is the load that a kernel put on the GPU according to its own clock and counts.
func (k *Kernel) asked(begin, end answer) rlcore.Use {
	u := rlcore.Use{MemMiB: begin.HeldMiB, PCIeMBps: float64(end.N) * begin.StepMB / end.Seconds}
	if !k.Copies {
		u.GPU = min(1, end.BusyS/end.Seconds)
		u.Core = u.GPU * k.SMs
	}
	return u
}

// add adds the figures of a trial.
func (r *Report) add(t *trial) {
	k := t.kernels[0]
	if len(t.kernels) == 1 {
		m := meanOf(t.looks)
		kr := KernelReport{
			Name: k.Name, Asked: k.asked(t.clients[0].first, t.ends[0]), DurationS: t.ends[0].Seconds, StepS: 1 / t.rate(0),
			Measured: rlcore.Use{GPU: m.GPU, Core: m.SM, PCIeMBps: m.PCIeMBps, MemMiB: max(0, m.MemMiB-r.IdleMiB)},
		}
		if m.SM < 0 {
			kr.Measured.Core = m.GPU // an upper bound
		}
		r.Kernels = append(r.Kernels, kr)
		r.alone[k.Name] = &rlcore.Profile{
			App: k.Name, DurationS: kr.DurationS, PeriodS: kr.DurationS, Series: []rlcore.Use{kr.Measured}, StepS: kr.StepS,
		}
		return
	}
	var predicted [2]rlcore.Prediction
	r.model.Predict(predicted[:], r.spec, []*rlcore.Profile{r.alone[k.Name], r.alone[t.kernels[1].Name]})
	for i, k := range t.kernels {
		p := PairReport{
			k.Name, t.kernels[1-i].Name, 1 / (r.alone[k.Name].StepS * t.rate(i)), predicted[i].Slowdown,
		}
		r.Pairs = append(r.Pairs, p)
		r.measured = append(r.measured, interference.Pair{Victim: p.Kernel, Aggressor: p.Beside, Slowdown: p.Slowdown})
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

// look reads the card for so long, five times a second. who names processes.
func (s *stage) look(ctx context.Context, lasts time.Duration, who func(pid int) string) (rows []sampled) {
	names, since, begin := map[int]string{}, time.Now(), time.Now()
	for end := begin.Add(s.long(lasts)); time.Now().Before(end) && ctx.Err() == nil; {
		row := sampled{T: time.Since(begin).Seconds(), SM: -1, ByPID: map[string]float64{}}
		now, err := s.card.Sample()
		if err != nil {
			s.note("the card isn't read: %v", err)
		}
		row.GPU, row.MemMiB, row.PCIeMBps = now.GPU, now.MemMiB, now.PCIeMBps
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
