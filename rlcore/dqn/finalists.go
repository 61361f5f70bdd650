package dqn

import (
	"math"
	"slices"
)

// maxFinalists bounds the sets of parameters that are compared in the end.
const maxFinalists = 4

// finalist is a set of parameters that may be kept.
type finalist struct {
	round int
	check float64 // as RoundStats.Check
	theta [][]float32
}

// finalists holds the initial parameters, then the best ones in order.
type finalists []finalist

// enter adds f if it is among the best.
func (l *finalists) enter(f finalist) {
	i := 1
	for i < len(*l) && (*l)[i].check <= f.check {
		i++
	}
	list := slices.Insert(*l, i, f)
	*l = list[:min(len(list), maxFinalists)]
}

// leader returns what looks best so far.
func (l finalists) leader() *finalist {
	if len(l) > 1 && l[1].check < l[0].check {
		return &l[1]
	}
	return &l[0]
}

// final plays further episodes with each finalist and returns the one with the
// smallest mean. It replaces the initial parameters only if it is better by more than
// the standard error of the differences: a lucky round isn't an improvement.
func (s *session) final() (finalist, error) {
	cfgs, err := s.episodes(s.o.Seed^seedOfFinal, finalChecks*s.o.Checks)
	if err != nil {
		return finalist{}, err
	}
	var base []float64
	win, most := s.finalists[0], 0.0
	for i, f := range s.finalists {
		restore(s.Net, f.theta)
		ratio, err := validate(s.players, cfgs)
		if err != nil {
			return finalist{}, err
		}
		f.check = mean(ratio)
		if i == 0 {
			base, win = ratio, f
			continue
		}
		if gain, se := gainOver(base, ratio); gain > se && gain > most {
			win, most = f, gain
		}
	}
	return win, nil
}

// gainOver returns the mean of base − ratio, episode by episode, and its standard error.
func gainOver(base, ratio []float64) (gain, se float64) {
	n := float64(len(ratio))
	for k := range ratio {
		gain += (base[k] - ratio[k]) / n
	}
	for k := range ratio {
		d := base[k] - ratio[k] - gain
		se += d * d
	}
	return gain, math.Sqrt(se) / n
}

func mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v / float64(len(x))
	}
	return sum
}
