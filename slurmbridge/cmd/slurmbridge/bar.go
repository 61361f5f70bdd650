package main

import (
	"io"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
	"golang.org/x/term"
)

// bar shows how far long work has come; on anything but a terminal it shows
// nothing, so that logs stay short.
type bar struct {
	w progress.Writer
	t *progress.Tracker
	// ended is closed when the last picture of it is drawn.
	ended chan struct{}
}

func newBar(out io.Writer) *bar {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return &bar{}
	}
	return startBar(f)
}

func startBar(out io.Writer) *bar {
	b := &bar{w: progress.NewWriter(), t: &progress.Tracker{}, ended: make(chan struct{})}
	b.w.SetOutputWriter(out)
	b.w.SetAutoStop(true)
	b.w.SetUpdateFrequency(200 * time.Millisecond)
	b.w.SetTrackerPosition(progress.PositionRight)
	b.w.SetMessageLength(44)
	b.w.Style().Visibility.Value = false
	b.w.AppendTracker(b.t)
	go func() {
		defer close(b.ended)
		b.w.Render()
	}()
	return b
}

// at shows that step of steps begins, and what it is.
func (b *bar) at(step, steps int, what string) {
	if b.t == nil {
		return
	}
	b.t.UpdateTotal(int64(steps))
	b.t.UpdateMessage(what)
	b.t.SetValue(int64(step))
}

func (b *bar) done() {
	if b.w == nil {
		return
	}
	b.t.MarkAsDone() // which makes it stop by itself, also where it has hardly begun
	<-b.ended
}
