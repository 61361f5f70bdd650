package gpusim

import "github.com/slurmbridge/slurmbridge/rlcore"

// phases turns a profile into at most MaxPoints phases: equal neighbours become
// one, and what is still too fine is halved until it fits, with time-weighted
// means of what flows and the largest of the memory.
func phases(p *rlcore.Profile) []point {
	pts := make([]point, 0, len(p.Series))
	for i, u := range p.Series {
		until := float64(i+1) * p.PeriodS
		last := i == len(p.Series)-1 || until >= p.DurationS
		if last {
			until = p.DurationS
		}
		q := point{Until: until, GPU: u.GPU, Core: u.Core, PCIe: u.PCIeMBps, Mem: u.MemMiB}
		if n := len(pts); n > 0 && pts[n-1].same(q) {
			pts[n-1].Until = until
		} else {
			pts = append(pts, q)
		}
		if last {
			break
		}
	}
	for len(pts) > MaxPoints {
		pts = halve(pts)
	}
	return pts
}

func (p point) same(q point) bool {
	p.Until = q.Until
	return p == q
}

// halve joins neighbours two by two, in place.
func halve(pts []point) []point {
	begin := 0.0
	out := pts[:0]
	for i := 0; i < len(pts); i += 2 {
		a := pts[i]
		end := a.Until
		if i+1 < len(pts) {
			b := pts[i+1]
			wa, wb := a.Until-begin, b.Until-a.Until
			if w := wa + wb; w > 0 {
				a.GPU = (wa*a.GPU + wb*b.GPU) / w
				a.Core = (wa*a.Core + wb*b.Core) / w
				a.PCIe = (wa*a.PCIe + wb*b.PCIe) / w
			}
			a.Mem = max(a.Mem, b.Mem)
			a.Until, end = b.Until, b.Until
		}
		begin = end
		out = append(out, a)
	}
	return out
}
