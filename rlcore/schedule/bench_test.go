package schedule

import (
	"fmt"
	"testing"
)

// manyEnds is a plain schedule of 500 busy GPUs and 10,000 waiting jobs, and the ends of all 500 running jobs.
func manyEnds() (p *Plain, nowS float64, ends []End) {
	const gpus, waiting = 500, 10_000
	names := make([]string, gpus)
	for g := range names {
		names[g] = fmt.Sprintf("n%d:0", g)
	}
	p = NewPlain(names...)
	for g := range gpus {
		j := job(fmt.Sprint("r", g), 1e6, 0, float64(600+g))
		p.Runs(j, []int{g}, 0, 0)
		ends = append(ends, End{j.ID, float64(500 + g%7)})
	}
	var queue []Job
	for i := range waiting {
		queue = append(queue, job(fmt.Sprint(i), float64(waiting-i), 0, float64(100+i%911)))
	}
	p.Wait(queue, 0)
	return p, 600, ends
}

// BenchmarkPlainEnded: 500 jobs end between two polls, and 10,000 wait.
func BenchmarkPlainEnded(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		p, nowS, ends := manyEnds()
		b.StartTimer()
		p.Ended(nowS, ends...)
	}
}
