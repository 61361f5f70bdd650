package cli

import (
	"io"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/progress"
	"golang.org/x/term"
)

// Bar shows how far long work has come; on anything but a terminal it shows
// nothing, so that logs stay short.
type Bar struct {
	w progress.Writer
	t *progress.Tracker
	// ended is closed when the last picture of it is drawn.
	ended chan struct{}
}

// NewBar begins a bar.
func NewBar(out io.Writer) *Bar {
	f, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return &Bar{}
	}
	return startBar(f)
}

func startBar(out io.Writer) *Bar {
	b := &Bar{w: progress.NewWriter(), t: &progress.Tracker{}, ended: make(chan struct{})}
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

// At shows that step of steps begins, and what it is.
func (b *Bar) At(step, steps int, what string) {
	if b.t == nil {
		return
	}
	b.t.UpdateTotal(int64(steps))
	b.t.UpdateMessage(what)
	b.t.SetValue(int64(step))
}

// Done ends the bar.
func (b *Bar) Done() {
	if b.w == nil {
		return
	}
	b.t.MarkAsDone() // which makes it stop by itself, also where it has hardly begun
	<-b.ended
}
