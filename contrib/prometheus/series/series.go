// Package series checks PromQL against what the daemons show: each series that is
// asked for exists, with the labels it is asked by, and is a counter where its
// growth is asked for. It serves the tests of alerts and dashboards.
package series

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/slurmbridge/slurmbridge/gpuprof/agent"
	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
	"github.com/slurmbridge/slurmbridge/gpuprof/spool"
)

// Set holds the labels of each series, by name. Those of targets (job, instance)
// belong to all.
type Set map[string][]string

// Daemons returns what slurmbridge serve and gpuprof serve show of themselves, and
// what Prometheus adds.
func Daemons() Set {
	s := Set{"up": nil}
	loop.NewMetrics(s)
	recordhttp.NewMetrics(s)
	agent.NewMetrics(s)
	s.MustRegister(agent.NewHooks(""))
	spool.NewMetrics(s)
	return s
}

// described is how a Desc prints itself, which is all that it tells.
var described = regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)

// Register takes the names of a collector: a Set is a registry.
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
		names := strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' || r == ' ' })
		s[m[1]] = names
		if _, ok := c.(prometheus.Histogram); ok || isHistogramVec(c) {
			delete(s, m[1])
			s[m[1]+"_bucket"] = append([]string{"le"}, names...)
			s[m[1]+"_sum"], s[m[1]+"_count"] = names, names
		}
	}
	return errors.Join(errs...)
}

func isHistogramVec(c prometheus.Collector) bool {
	_, ok := c.(*prometheus.HistogramVec)
	return ok
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
var targets = []string{labels.MetricName, "job", "instance"}

// Check says what is wrong with a query, nil = nothing.
func (s Set) Check(query string) error {
	expr, err := parser.ParseExpr(query)
	if err != nil {
		return err
	}
	var errs []error
	known := slices.Clone(targets) // of all selectors: by and on may name these
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		sel, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		has, there := s[sel.Name]
		if !there {
			errs = append(errs, fmt.Errorf("there is no series %q", sel.Name))
		}
		known = append(known, has...)
		for _, m := range sel.LabelMatchers {
			if !slices.Contains(has, m.Name) && !slices.Contains(targets, m.Name) {
				errs = append(errs, fmt.Errorf("%s has no label %q", sel.Name, m.Name))
			}
		}
		return nil
	})
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.AggregateExpr:
			errs = append(errs, unknown(n.Grouping, known)...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				errs = append(errs, unknown(n.VectorMatching.MatchingLabels, known)...)
				errs = append(errs, unknown(n.VectorMatching.Include, known)...)
			}
		case *parser.Call:
			errs = append(errs, growth(n))
		}
		return nil
	})
	return errors.Join(errs...)
}

func unknown(names, known []string) (errs []error) {
	for _, name := range names {
		if !slices.Contains(known, name) {
			errs = append(errs, fmt.Errorf("no series here has the label %q", name))
		}
	}
	return errs
}

// growth: a rate is of counters, a difference of gauges.
func growth(c *parser.Call) error {
	if len(c.Args) == 0 {
		return nil
	}
	m, ok := c.Args[0].(*parser.MatrixSelector)
	if !ok {
		return nil
	}
	name := m.VectorSelector.(*parser.VectorSelector).Name
	counter := false
	for _, end := range []string{"_total", "_bucket", "_sum", "_count"} {
		counter = counter || strings.HasSuffix(name, end)
	}
	switch c.Func.Name {
	case "rate", "irate", "increase", "resets":
		if !counter {
			return fmt.Errorf("%s of %s, which is no counter", c.Func.Name, name)
		}
	case "delta", "idelta", "deriv", "predict_linear":
		if counter {
			return fmt.Errorf("%s of %s, which is a counter", c.Func.Name, name)
		}
	}
	return nil
}
