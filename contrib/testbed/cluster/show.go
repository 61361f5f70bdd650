package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

// Main runs a program of the stage until it ends or is interrupted.
func Main(name string, run func(ctx context.Context) error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx)
	if err != nil && ctx.Err() != nil {
		err = errors.New("interrupted; everything it started has ended")
	}
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
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

// Quantile is the smallest value that a fraction q of all values doesn't exceed; 0 of
// none.
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
