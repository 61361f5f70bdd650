// Package grafana makes the dashboards that Grafana imports of dashboards.yaml: bridge.json shows whether the bridge is
// well, sharing.json what sharing does to GPUs and jobs, usage.json what the GPUs were used for.
package grafana

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/template"

	"go.yaml.in/yaml/v3"
)

//go:embed dashboards.yaml
var table []byte

//go:embed board.yaml.tmpl
var board string

// dashboard is an entry of dashboards.yaml.
type dashboard struct {
	Name          string `yaml:"-"`
	Title, About  string
	Refresh, From string
	Height        int  // of a timeseries or heatmap
	Nodes         bool // nodes can be chosen, too
	Panels        []*entry
}

// entry is a panel: one of Row, Stat, Timeseries and Heatmap is its title.
type entry struct {
	Row, Stat, Timeseries, Heatmap string
	About                          string
	Looks                          looks
	Queries                        [][2]string // legend, PromQL
	Half                           string      // in place of Queries: of this histogram
	place                          `yaml:"-"`
}

// place is where a panel is.
type place struct{ ID, X, Y, W, H int }

// Kind is Grafana's name of the panel's kind.
func (p *entry) Kind() string {
	switch {
	case p.Row != "":
		return "row"
	case p.Stat != "":
		return "stat"
	case p.Heatmap != "":
		return "heatmap"
	}
	return "timeseries"
}

// Title is the panel's, of any kind.
func (p *entry) Title() string { return cmp.Or(p.Row, p.Stat, p.Timeseries, p.Heatmap) }

// looks is how a panel shows its figures.
type looks struct {
	Unit    string
	Width   int
	Steps   []string          // of a stat: colours, and from which value on
	None    string            // shown where there is no figure
	YesNo   bool              // of 1 and 0
	Name    bool              // the legend is shown, not the figure
	Stack   bool              // areas upon each other
	Free    bool              // the axis begins where the figures do, not at Min
	Min     float64           // of the axis
	Max     *float64          //
	Colours map[string]string // of legends
}

// read returns the dashboards of dashboards.yaml by their names.
func read() (all map[string]*dashboard, err error) {
	d := yaml.NewDecoder(bytes.NewReader(table))
	d.KnownFields(true)
	if err = d.Decode(&all); err != nil {
		return nil, fmt.Errorf("dashboards.yaml: %w", err)
	}
	for name, b := range all {
		b.Name = name
		b.place()
	}
	return all, nil
}

// Queries returns what every panel asks for, by dashboard and title, as Prometheus receives it: for all bridges and
// nodes, and with rates over the given span ("1m").
func Queries(span string) (map[string][]string, error) {
	all, err := read()
	values := strings.NewReplacer("$__rate_interval", span, "$__range", span, "$bridge", ".*", "$node", ".*")
	out := map[string][]string{}
	for name, b := range all {
		for _, p := range b.Panels {
			for _, q := range p.All() {
				title := name + ": " + p.Title()
				out[title] = append(out[title], values.Replace(q.Expr))
			}
		}
	}
	return out, err
}

// Boards makes all dashboards, as JSON by file name.
func Boards() (map[string][]byte, error) {
	all, err := read()
	if err != nil {
		return nil, err
	}
	t, err := template.New("board").Funcs(template.FuncMap{"json": inJSON, "from": from}).Parse(board)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for name, b := range all {
		var filled bytes.Buffer
		var grafanas any
		if err := errors.Join(t.Execute(&filled, b), yaml.Unmarshal(filled.Bytes(), &grafanas)); err != nil {
			return nil, fmt.Errorf("dashboard %s: %w", name, err)
		}
		text, err := json.MarshalIndent(grafanas, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("dashboard %s: %w", name, err)
		}
		out[name+".json"] = append(text, '\n')
	}
	return out, nil
}

// inJSON is a text in JSON, which is YAML, too.
func inJSON(v string) (string, error) {
	text, err := json.Marshal(v)
	return string(text), err
}

// from are the value from which on a stat has a colour, and the colour: of "120 orange", or "green" from the least on.
func from(step string) [2]string {
	if value, colour, is := strings.Cut(step, " "); is {
		return [2]string{value, colour}
	}
	return [2]string{"null", step}
}

// place gives the panels their places, from left to right and down.
func (b *dashboard) place() {
	const columns = 24
	x, y, high := 0, 0, 0
	for i, p := range b.Panels {
		w, h := 12, max(b.Height, 8)
		switch p.Kind() {
		case "row":
			w, h = columns, 1
		case "stat":
			w, h = 4, 4
		}
		if w = cmp.Or(p.Looks.Width, w); x+w > columns || x > 0 && h != high {
			x, y = 0, y+high
		}
		p.place = place{i + 1, x, y, w, h}
		x, high = x+w, h
	}
}

// short are the abbreviations of dashboards.yaml.
var short = strings.NewReplacer("$b", `instance=~"$bridge"`, "$n", `instance=~"$node"`, "$i", "$__rate_interval", "$r",
	"$__range")

// query is what a panel asks Prometheus for.
type query struct{ Ref, Legend, Expr string }

// All are the panel's queries, in full.
func (p *entry) All() (out []query) {
	queries := p.Queries
	if p.Half != "" {
		quantile := func(q string) string {
			return "histogram_quantile(" + q + ", sum by (le) (rate(" + p.Half + "_bucket{$b}[$i])))"
		}
		queries = [][2]string{{"half", quantile("0.5")}, {"95 %", quantile("0.95")}}
	}
	for i, q := range queries {
		if of, is := strings.CutPrefix(q[1], "mean "); is {
			metric, span, _ := strings.Cut(of, " ")
			sum := func(part string) string { return "sum(rate(" + metric + part + "{$b}[" + span + "]))" }
			q[1] = sum("_sum") + " / " + sum("_count")
		}
		out = append(out, query{string(rune('A' + i)), q[0], short.Replace(q[1])})
	}
	return out
}
