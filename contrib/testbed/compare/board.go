package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
)

// board shows how far the runs have come: a line for each that is over, and on a
// terminal one that is rewritten for those under way.
type board struct {
	out   io.Writer
	tty   bool
	now   func() time.Time
	began time.Time
	runs  int // in all
	jobs  int // of all runs

	mu      sync.Mutex
	ended   map[*cell]int // jobs
	running map[*cell]int
	done    int
	last    time.Time // when a line was written where there is no terminal
}

func newBoard(out io.Writer, tty bool, now func() time.Time, cells []*cell) *board {
	b := &board{out: out, tty: tty, now: now, began: now(), last: now(), runs: len(cells), ended: map[*cell]int{}, running: map[*cell]int{}}
	for _, c := range cells {
		b.jobs += len(c.apps)
	}
	return b
}

// quiet is how long nothing is written where there is no terminal.
const quiet = 30 * time.Second

// at says how many of a run's jobs have ended and how many are running.
func (b *board) at(c *cell, ended, running int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended[c], b.running[c] = ended, running
	switch {
	case b.tty:
		fmt.Fprintf(b.out, "\r\x1b[K%s", b.line())
	case b.now().Sub(b.last) >= quiet:
		fmt.Fprintln(b.out, b.line())
		b.last = b.now()
	}
}

// over says that a run has come to its end.
func (b *board) over(c *cell) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done++
	b.ended[c], b.running[c] = len(c.apps), 0
	text := "failed: "
	if c.err != nil {
		text += firstLine(c.err.Error())
	} else {
		f := c.figures
		by := objective(c.workload)
		text = fmt.Sprintf("%s %5.0f s", by, f.of(by))
		if f.JobsFailed > 0 {
			text += ", " + count(f.JobsFailed, "job") + " failed"
		}
	}
	if b.tty {
		fmt.Fprint(b.out, "\r\x1b[K")
	}
	fmt.Fprintf(b.out, "%3.0f s  %-22s %s\n", b.now().Sub(b.began).Seconds(), c.name(), text)
	if b.tty && b.done < b.runs {
		fmt.Fprint(b.out, b.line())
	}
	b.last = b.now()
}

func (b *board) line() string {
	ended, running, under := 0, 0, 0
	for _, n := range b.ended {
		ended += n
	}
	for _, n := range b.running {
		running += n
		if n > 0 {
			under++
		}
	}
	return fmt.Sprintf("%3.0f s  %s %d/%d jobs ended, %d running on %s, %d/%d runs over",
		b.now().Sub(b.began).Seconds(), cluster.Bar(24, ended, b.jobs), ended, b.jobs, running, count(under, "cluster"), b.done, b.runs)
}
