package main

import (
	"context"
	"fmt"

	"gonum.org/v1/gonum/stat"
)

// solo is a kernel that was measured alone.
type solo struct {
	sized
	sharer
	alone float64 // iterations a second
}

// group is kernels that were measured together.
type group struct {
	members []int // of the solos
	slow    []float64
}

// overhead is what sampling costs a kernel.
type overhead struct {
	kernel        string
	without, with []float64 // iterations a second, one of each a repeat
}

// costs are the parts of the speed that sampling took, one a repeat.
func (o *overhead) costs() []float64 {
	var out []float64
	for i := range o.with {
		out = append(out, 1-o.with[i]/o.without[i])
	}
	return out
}

// spread is the mean and standard deviation; of one value there is none.
func spread(v []float64) (mean, sd float64) {
	if len(v) < 2 {
		return stat.Mean(v, nil), 0
	}
	return stat.MeanStdDev(v, nil)
}

// measured is all that was measured.
type measured struct {
	solos     []solo
	groups    []group
	overheads []overhead
	failures  []string
}

// extent is how much is measured.
type extent struct {
	triples int
	repeats int // of each kernel that sampling is weighed with
}

// weighed are the kernels that sampling is weighed with: NVML could cost the
// launching of kernels as well as copies.
var weighed = []string{"compute", "pcie"}

// measure runs everything. A kernel or group that fails is noted and doesn't stop the rest. at is
// called with what begins.
func (b *bench) measure(ctx context.Context, kernels []Kernel, e extent, at func(what string)) (*measured, error) {
	m := new(measured)
	failed := func(what string, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		m.failures = append(m.failures, what+": "+err.Error())
		return b.service.renew(ctx)
	}
	for i := range kernels {
		at(kernels[i].Name)
		s, err := b.alone(ctx, &kernels[i])
		if err == nil {
			m.solos = append(m.solos, s)
			continue
		}
		if err := failed(kernels[i].Name, err); err != nil {
			return nil, err
		}
	}
	for _, members := range groups(len(m.solos), e.triples) {
		name := m.name(members)
		at(name)
		g, err := b.beside(ctx, m.solos, members)
		if err == nil {
			m.groups = append(m.groups, g)
			continue
		}
		if err := failed(name, err); err != nil {
			return nil, err
		}
	}
	for _, name := range weighed {
		s := m.solo(name)
		if s == nil {
			continue
		}
		o := overhead{kernel: name}
		for i := range e.repeats {
			at(name + ", sampled and not")
			if err := b.weigh(ctx, s, i, &o); err != nil {
				if err := failed("sampling of "+name, err); err != nil {
					return nil, err
				}
			}
		}
		if len(o.with) > 0 {
			m.overheads = append(m.overheads, o)
		}
	}
	return m, nil
}

func (m *measured) name(members []int) string {
	text := ""
	for i, k := range members {
		if i > 0 {
			text += " + "
		}
		text += m.solos[k].Name
	}
	return text
}

func (m *measured) solo(name string) *solo {
	for i := range m.solos {
		if m.solos[i].Name == name {
			return &m.solos[i]
		}
	}
	return nil
}

func (b *bench) alone(ctx context.Context, k *Kernel) (solo, error) {
	s, err := b.calibrate(ctx, k)
	if err != nil {
		return solo{}, err
	}
	got, err := b.together(ctx, []sized{s}, true)
	if err != nil {
		return solo{}, err
	}
	r, err := rates(got)
	if err != nil {
		return solo{}, err
	}
	return solo{sized: s, sharer: got[0], alone: r[0]}, nil
}

func (b *bench) beside(ctx context.Context, solos []solo, members []int) (group, error) {
	var run []sized
	for _, i := range members {
		run = append(run, solos[i].sized)
	}
	got, err := b.together(ctx, run, true)
	if err != nil {
		return group{}, err
	}
	r, err := rates(got)
	if err != nil {
		return group{}, err
	}
	g := group{members: members}
	for i := range r {
		g.slow = append(g.slow, solos[members[i]].alone/r[i])
	}
	return g, nil
}

// weigh runs a kernel once with and once without sampling, for half of its
// iterations. Which comes first alternates, so that a card that slows as it warms
// doesn't count for either.
func (b *bench) weigh(ctx context.Context, s *solo, repeat int, o *overhead) error {
	half := s.sized
	half.iterations = max(3, half.iterations/2)
	var rate [2]float64
	for i := range rate {
		sampled := (i + repeat) % 2
		got, err := b.together(ctx, []sized{half}, sampled == 1)
		if err != nil {
			return err
		}
		r, err := rates(got)
		if err != nil {
			return fmt.Errorf("rate: %w", err)
		}
		rate[sampled] = r[0]
	}
	o.without, o.with = append(o.without, rate[0]), append(o.with, rate[1])
	return nil
}

// steps is how often measure calls at, if nothing fails.
func steps(kernels int, e extent) int {
	return kernels + len(groups(kernels, e.triples)) + len(weighed)*e.repeats
}

// needs is about how long it takes, in units of the solo target, with a guess that
// two slow each other by half and three by as much again, and its programs' starts.
func needs(kernels int, e extent) (targets float64, starts int) {
	for _, g := range groups(kernels, e.triples) {
		targets += 1 + 0.5*float64(len(g)-1)
		starts++
	}
	targets += 1.1*float64(kernels) + float64(len(weighed)*e.repeats)
	return targets, starts + 2*kernels + 2*len(weighed)*e.repeats
}
