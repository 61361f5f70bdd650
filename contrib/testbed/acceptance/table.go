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
	// needed: without it nothing that follows means anything.
	needed bool
	// do returns the message for a step that holds; check ends a step that doesn't.
	do func(ctx context.Context) string
}

// failure is the panic that ends a step, and only that step.
type failure struct{ error }

// check ends the step with an error, if there is one.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must is the value of a call that the step can't go on without.
func must[T any](v T, err error) T {
	check(err)
	return v
}

// fail ends the step.
func fail(format string, args ...any) {
	check(fmt.Errorf(format, args...))
}

// because puts what went wrong in front of an error, if there is one.
func because(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// run runs the step for at most its longest time.
func (s *step) run(ctx context.Context) (detail string, err error) {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = p.error
		default:
			panic(p)
		}
	}()
	return s.do(ctx), nil
}

// result is the outcome of a step; err nil = it holds.
type result struct {
	name, detail string
	took         time.Duration
	err          error
	skipped      bool
}

// longest bounds a step.
const longest = 10 * time.Minute

// runAll runs the steps and prints each as it goes.
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
		detail, err := s.run(ctx)
		res := result{name: s.name, detail: detail, took: time.Since(at), err: err}
		r.results = append(r.results, res)
		if err == nil {
			fmt.Printf("ok, %.1f s: %s\n", res.took.Seconds(), detail)
			continue
		}
		ok = false
		on = on && !s.needed
		fmt.Printf("FAILED: %v\n", err)
		if ctx.Err() == nil {
			r.keepLog(ctx, s.name, err)
		}
	}
	return ok
}

// keepLog appends the end of the machines' journals to a file next to the packages.
func (r *rig) keepLog(ctx context.Context, name string, err error) {
	path := filepath.Join(r.o.build, "acceptance", r.o.release+".log")
	f, ferr := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if ferr != nil {
		return
	}
	defer f.Close()
	fmt.Fprintf(f, "===== %s: %v\n", name, err)
	for _, m := range r.machines() {
		if m.leader == 0 {
			continue
		}
		out, _ := m.sh(ctx, `journalctl --no-pager -n 60 -o short-precise
tail -n 30 /var/log/slurm/*.log
[ `+m.name+` = gpu1 ] || { squeue -o '%i %u %T %r %E %b'; sinfo -R; }`)
		fmt.Fprintf(f, "----- %s\n%s\n", m.name, out)
	}
	fmt.Printf("        the end of the machines' logs: %s\n", path)
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
