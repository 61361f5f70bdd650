// Package series checks PromQL against what the daemons export: each series in a query
// exists, with the labels that the query uses, and is a counter where the query computes
// its growth. promtool checks the syntax. It serves the tests of alerts and dashboards.
package series

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/gpuprof/agent"
	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
	"github.com/slurmbridge/slurmbridge/gpuprof/spool"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
)

// Set holds the labels of each series, by name. Every series has those of targets (job, instance) as well.
type Set map[string][]string

// Daemons returns what slurmbridge serve and gpuprof serve export, and what Prometheus adds.
func Daemons() Set {
	s := Set{"up": nil}
	loop.NewMetrics(s)
	recordhttp.NewMetrics(s)
	agent.NewMetrics(s)
	agent.ShowHooks(s, "", "")
	spool.NewMetrics(s)
	return s
}

// described matches a Desc's String, the only access that it gives.
var described = regexp.MustCompile(`fqName: "([^"]+)".*constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}`)

// Register adds a collector's series: a Set is a prometheus.Registerer.
func (s Set) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc)
	go func() { c.Describe(ch); close(ch) }()
	var errs []error
	for d := range ch {
		m := described.FindStringSubmatch(d.String())
		if m == nil {
			errs = append(errs, fmt.Errorf("not understood: %s", d))
			continue
		}
		names := strings.FieldsFunc(m[3], func(r rune) bool { return r == ',' || r == ' ' })
		for _, label := range matcher.FindAllStringSubmatch(quoted.ReplaceAllString(m[2], `""`), -1) {
			names = append(names, label[1])
		}
		s[m[1]] = names
		switch c.(type) {
		case prometheus.Histogram, *prometheus.HistogramVec:
			delete(s, m[1])
			s[m[1]+"_bucket"] = append([]string{"le"}, names...)
			s[m[1]+"_sum"], s[m[1]+"_count"] = names, names
		}
	}
	return errors.Join(errs...)
}

// MustRegister implements prometheus.Registerer.
func (s Set) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := s.Register(c); err != nil {
			panic(err)
		}
	}
}

// Unregister implements prometheus.Registerer.
func (s Set) Unregister(prometheus.Collector) bool { return false }

// targets are the labels that Prometheus gives every series.
var targets = []string{"__name__", "job", "instance"}

// How the parts of a query look, apart from its strings: a series, the daemons' or a rule's (level:metric:operations),
// with its matchers; what is computed of a series over time; groupings.
var (
	quoted   = regexp.MustCompile(`"[^"]*"`)
	one      = regexp.MustCompile(`\b((?:\w+:)?(?:slurmbridge|gpuprof)_\w+(?::\w+)?|up)\b\s*(?:\{([^}]*)\})?`)
	growth   = regexp.MustCompile(`\b(\w+)\s*\(\s*([\w:]+)\s*(?:\{[^}]*\})?\s*\[`)
	grouping = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	matcher  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`)
)

// Check tells what is wrong with the series and labels of a query, nil = nothing.
func (s Set) Check(query string) error {
	query = quoted.ReplaceAllString(query, "")
	var errs []error
	for _, m := range growth.FindAllStringSubmatch(query, -1) {
		errs = append(errs, grows(m[1], m[2]))
	}
	known := slices.Clone(targets) // labels of all series, which by and on may name
	for _, m := range one.FindAllStringSubmatch(query, -1) {
		labels, there := s[m[1]]
		if !there {
			errs = append(errs, fmt.Errorf("there is no series %q", m[1]))
		}
		known = append(known, labels...)
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			errs = append(errs, has(m[1], l[1], slices.Concat(labels, targets)))
		}
	}
	for _, m := range grouping.FindAllStringSubmatch(query, -1) {
		for _, label := range strings.FieldsFunc(m[1], func(r rune) bool { return r == ',' || r == ' ' }) {
			errs = append(errs, has("this query", label, known))
		}
	}
	return errors.Join(errs...)
}

func has(what, label string, labels []string) error {
	if slices.Contains(labels, label) {
		return nil
	}
	return fmt.Errorf("%s has no label %q", what, label)
}

// grows checks that a rate is of a counter, a difference of a gauge.
func grows(function, name string) error {
	counter := slices.ContainsFunc([]string{"_total", "_bucket", "_sum", "_count"},
		func(end string) bool { return strings.HasSuffix(name, end) })
	switch function {
	case "rate", "irate", "increase", "resets":
		if !counter {
			return fmt.Errorf("%s of %s, which is no counter", function, name)
		}
	case "delta", "idelta", "deriv", "predict_linear":
		if counter {
			return fmt.Errorf("%s of %s, which is a counter", function, name)
		}
	}
	return nil
}

// Require skips a test where a program of Prometheus's is missing, or fails it if
// SLURMBRIDGE_REQUIRE_PROMETHEUS is set.
func Require(tb testing.TB, program string) {
	tb.Helper()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	if os.Getenv("SLURMBRIDGE_REQUIRE_PROMETHEUS") != "" {
		tb.Fatalf("no %s: contrib/install-deps --prometheus", program)
	}
	tb.Skipf("no %s: contrib/install-deps --prometheus", program)
}

// Promtool runs promtool; its output is the error.
func Promtool(tb testing.TB, args ...string) error {
	tb.Helper()
	Require(tb, "promtool")
	if out, err := exec.CommandContext(tb.Context(), "promtool", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("promtool %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
