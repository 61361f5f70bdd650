package cluster

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/prometheus/procfs"
	"golang.org/x/term"
	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

// Line is a line of progress: rewritten on a terminal, else written every Quiet.
type Line struct {
	Out   io.Writer
	TTY   bool
	Quiet time.Duration

	mu   sync.Mutex
	last time.Time
}

// NewLine is a line on standard output.
func NewLine(quiet time.Duration) *Line {
	return &Line{Out: os.Stdout, TTY: term.IsTerminal(int(os.Stdout.Fd())), Quiet: quiet, last: time.Now()}
}

// Show shows how far the work is.
func (l *Line) Show(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.TTY:
		fmt.Fprintf(l.Out, "\r\x1b[K%s", text)
	case time.Since(l.last) >= l.Quiet:
		fmt.Fprintln(l.Out, text)
		l.last = time.Now()
	}
}

// Keep writes a line that stays.
func (l *Line) Keep(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.TTY {
		fmt.Fprint(l.Out, "\r\x1b[K")
	}
	fmt.Fprintln(l.Out, text)
	l.last = time.Now()
}

// WriteJSON writes a value to a file in one step, each object of a list on a line. It makes the file's folder.
func WriteJSON(file string, value any) error {
	body, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	//nolint:gosec // figures are public
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return renameio.WriteFile(file, joinObjects(body), 0o644)
}

// joinObjects joins the lines of each object in a list of indented JSON: those from a bracket that is alone on its line
// to the closing one below it.
func joinObjects(indented []byte) []byte {
	var out []byte
	closing := "" // what ends the object whose lines are being joined
	for line := range strings.Lines(string(indented)) {
		text := strings.TrimSpace(line)
		if closing == "" {
			out = append(out, strings.TrimRight(line, "\n")...)
		} else {
			out = append(out, text...)
		}
		switch indent := line[:len(line)-len(strings.TrimLeft(line, " "))]; {
		case closing == "" && text == "{" && indent != "":
			closing = indent + "}"
		case closing != "" && strings.HasPrefix(line, closing):
			closing = ""
		}
		if closing == "" {
			out = append(out, '\n')
		} else if strings.HasSuffix(text, ",") {
			out = append(out, ' ')
		}
	}
	return out
}

// Table is a table with its figures at the right: all columns but the first.
func Table(out io.Writer, head ...any) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(out)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	var columns []table.ColumnConfig
	for i := range head[1:] {
		columns = append(columns, table.ColumnConfig{Number: i + 2, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	t.SetColumnConfigs(columns)
	t.AppendHeader(head)
	return t
}

// Bar is a bar of so many characters that shows how much is done.
func Bar(width, done, total int) string {
	full := min(width, width*done/max(1, total))
	return strings.Repeat("█", full) + strings.Repeat("·", width-full)
}

// Quantile is the smallest value that a fraction q of all values doesn't exceed; 0 of none.
func Quantile(q float64, values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	return stat.Quantile(q, stat.Empirical, slices.Sorted(slices.Values(values)), nil)
}

// SoloS is how long the applications take one after the other, GPU seconds.
func SoloS(names []string) float64 {
	sum := 0.0
	for _, n := range names {
		if p, ok := apps.ByName(n); ok {
			sum += p.DurationS
		}
	}
	return sum
}

// Load is how busy this machine's CPUs are. What the simulated GPU computes doesn't
// depend on it, but Slurm's pauses grow where they are full.
type Load struct{ busy, all float64 } // s of all CPUs

// NewLoad begins to watch.
func NewLoad() *Load {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return &Load{}
	}
	s, err := fs.Stat()
	if err != nil {
		return &Load{}
	}
	c := s.CPUTotal // guests are counted among users already
	busy := c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal
	return &Load{busy, busy + c.Idle + c.Iowait}
}

// Since is the part of the CPUs' time that was busy since the last call; ok is false where it is unknown.
func (l *Load) Since() (busy float64, ok bool) {
	was, is := *l, *NewLoad()
	*l = is
	if is.all <= was.all || was.all == 0 {
		return 0, false
	}
	return (is.busy - was.busy) / (is.all - was.all), true
}
