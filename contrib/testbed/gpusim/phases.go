package gpusim

import "github.com/slurmbridge/slurmbridge/rlcore"

// phases turns a profile into phases: equal neighbours become one.
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
	return pts
}

func (p point) same(q point) bool {
	p.Until = q.Until
	return p == q
}
