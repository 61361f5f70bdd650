package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
	"golang.org/x/term"
)

// bar shows how far it has come; on anything but a terminal a line for each step.
type bar struct {
	out     io.Writer
	step    int
	steps   int
	w       progress.Writer
	t       *progress.Tracker
	stopped chan struct{}
}

func newBar(out io.Writer, steps int) *bar {
	b := &bar{out: out, steps: steps}
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return b
	}
	b.w, b.t, b.stopped = progress.NewWriter(), &progress.Tracker{Total: int64(steps)}, make(chan struct{})
	b.w.SetOutputWriter(out)
	b.w.SetAutoStop(true)
	b.w.SetUpdateFrequency(200 * time.Millisecond)
	b.w.SetTrackerPosition(progress.PositionRight)
	b.w.SetMessageLength(44)
	b.w.Style().Visibility.Value = false
	b.w.AppendTracker(b.t)
	go func() {
		defer close(b.stopped)
		b.w.Render()
	}()
	return b
}

// at shows that the next step begins.
func (b *bar) at(what string) {
	b.step++
	if b.t == nil {
		fmt.Fprintf(b.out, "gpucheck: %d/%d %s\n", b.step, b.steps, what)
		return
	}
	b.t.UpdateMessage(what)
	b.t.SetValue(int64(b.step - 1))
}

func (b *bar) done() {
	if b.w == nil {
		return
	}
	b.t.MarkAsDone() // which makes it stop by itself
	<-b.stopped
}
