package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// step is one check.
type step struct {
	name string
	// must: without it nothing that follows means anything.
	must bool
	do   func(ctx context.Context) (string, error)
}

// result is what became of a step; err nil = it holds.
type result struct {
	name, detail string
	took         time.Duration
	err          error
	skipped      bool
}

// longest bounds a step.
const longest = 10 * time.Minute

// runAll runs the steps and tells of each as it goes.
func (r *rig) runAll(ctx context.Context) bool {
	ok, on := true, true
	began := time.Now()
	for _, s := range r.steps() {
		if !on || ctx.Err() != nil {
			r.results = append(r.results, result{name: s.name, skipped: true})
			ok = false
			continue
		}
		fmt.Printf("%4.0f s  %s … ", time.Since(began).Seconds(), s.name)
		at := time.Now()
		sctx, cancel := context.WithTimeout(ctx, longest)
		detail, err := s.do(sctx)
		cancel()
		res := result{name: s.name, detail: detail, took: time.Since(at), err: err}
		r.results = append(r.results, res)
		if err == nil {
			fmt.Printf("ok, %.1f s: %s\n", res.took.Seconds(), detail)
			continue
		}
		ok = false
		on = on && !s.must
		fmt.Printf("FAILED: %v\n", err)
		if ctx.Err() == nil {
			r.keepLog(ctx, s.name, err)
		}
	}
	return ok
}

// keepLog appends what the machines' journals said last to a file beside the packages.
func (r *rig) keepLog(ctx context.Context, name string, err error) {
	path := filepath.Join(r.o.build, "acceptance", r.o.release+".log")
	f, ferr := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if ferr != nil {
		return
	}
	defer f.Close()
	fmt.Fprintf(f, "===== %s: %v\n", name, err)
	for _, m := range []*machine{r.head, r.node} {
		if m.leader == 0 {
			continue
		}
		out, _ := m.sh(ctx, `journalctl --no-pager -n 60 -o short-precise
tail -n 30 /var/log/slurm/*.log
[ `+m.name+` = gpu1 ] || { squeue -o '%i %u %T %r %E %b'; sinfo -R; }`)
		fmt.Fprintf(f, "----- %s\n%s\n", m.name, out)
	}
	fmt.Printf("        the machines' last words: %s\n", path)
}

// table prints all checks.
func (r *rig) table(took time.Duration) {
	t := table.NewWriter()
	t.SetOutputMirror(os.Stdout)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.SetColumnConfigs([]table.ColumnConfig{{Number: 3, Align: text.AlignRight}, {Number: 4, WidthMax: 72}})
	t.AppendHeader(table.Row{"check", "", "s", ""})
	held := 0
	for _, res := range r.results {
		said, detail := "ok", res.detail
		switch {
		case res.skipped:
			said = "not run"
		case res.err != nil:
			said, detail = "FAILED", firstLine(res.err)
		default:
			held++
		}
		t.AppendRow(table.Row{res.name, said, fmt.Sprintf("%.1f", res.took.Seconds()), detail})
	}
	fmt.Println()
	t.Render()
	fmt.Printf("%s: %d of %d checks hold, %.0f s\n", r.o.release, held, len(r.results), took.Seconds())
}

func firstLine(err error) string {
	s := err.Error()
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		s = "took longer than " + longest.String()
	}
	return s
}
