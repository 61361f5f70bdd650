package compare

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
)

// board shows how far the runs have come: a line for each that is over, and one that changes for
// those under way.
type board struct {
	line  *cluster.Line
	began time.Time
	runs  int // in all
	jobs  int // of all runs

	mu      sync.Mutex
	ended   map[*cell]int // jobs
	running map[*cell]int
	done    int
}

func newBoard(line *cluster.Line, cells []*cell) *board {
	b := &board{line: line, began: line.Now(), runs: len(cells), ended: map[*cell]int{}, running: map[*cell]int{}}
	for _, c := range cells {
		b.jobs += len(c.apps)
	}
	return b
}

// at says how many of a run's jobs have ended and how many are running; gpu may be nil.
func (b *board) at(c *cell, ended, running int, gpu *gpusim.Snapshot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended[c], b.running[c] = ended, running
	all, under := 0, 0
	for _, n := range b.ended {
		all += n
	}
	running = 0
	for _, n := range b.running {
		running += n
		if n > 0 {
			under++
		}
	}
	text := fmt.Sprintf("%s  %s %d/%d jobs ended, %d running on %s, %d/%d runs over",
		b.clock(), cluster.Bar(24, all, b.jobs), all, b.jobs, running, count(under, "cluster"), b.done, b.runs)
	if gpu != nil && under == 1 {
		text += fmt.Sprintf(" (%s: GPU %3.0f %%, %5.0f MiB)", c.name(), 100*gpu.GPU, gpu.MemMiB)
	}
	b.line.Show(text)
}

// over says that a run has come to its end.
func (b *board) over(c *cell) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done++
	b.ended[c], b.running[c] = len(c.apps), 0
	var text string
	if c.err != nil {
		line, _, _ := strings.Cut(c.err.Error(), "\n")
		text = "failed: " + line
	} else {
		by := objective(c.workload)
		text = fmt.Sprintf("%s %5.0f s", by, c.figures.of(by))
		if n := c.figures.JobsFailed; n > 0 {
			text += ", " + count(n, "job") + " failed"
		}
	}
	b.line.Keep(fmt.Sprintf("%s  %-22s %s", b.clock(), c.name(), text))
}

func (b *board) clock() string { return fmt.Sprintf("%3.0f s", b.line.Now().Sub(b.began).Seconds()) }
