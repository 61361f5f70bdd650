// Package grafana makes the dashboards that Grafana imports of dashboards.yaml: bridge.json shows whether the bridge is
// well, sharing.json what sharing does to GPUs and jobs, usage.json what the GPUs were used for.
package grafana

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

//go:embed dashboards.yaml
var table []byte

// dashboard is an entry of dashboards.yaml.
type dashboard struct {
	Title, About  string
	Refresh, From string
	Height        int  // of a timeseries or heatmap
	Nodes         bool // nodes can be chosen, too
	Panels        []entry
}

// entry is a panel: one of Row, Stat, Timeseries and Heatmap is its title.
type entry struct {
	Row, Stat, Timeseries, Heatmap string
	About                          string
	Looks                          looks
	Queries                        [][2]string // legend, PromQL
	Half                           string      // in place of Queries: of this histogram
}

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

type object = map[string]any

var prometheus = object{"type": "prometheus", "uid": "${datasource}"}

// read returns the dashboards of dashboards.yaml by their names.
func read() (all map[string]dashboard, err error) {
	d := yaml.NewDecoder(bytes.NewReader(table))
	d.KnownFields(true)
	if err = d.Decode(&all); err != nil {
		return nil, fmt.Errorf("dashboards.yaml: %w", err)
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
		for i := range b.Panels {
			p := &b.Panels[i]
			for _, q := range p.queries() {
				title := name + ": " + cmp.Or(p.Stat, p.Timeseries, p.Heatmap)
				out[title] = append(out[title], values.Replace(q[1]))
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
	out := map[string][]byte{}
	for name, b := range all {
		text, err := json.MarshalIndent(b.json(name), "", "  ")
		if err != nil {
			return nil, fmt.Errorf("dashboard %s: %w", name, err)
		}
		out[name+".json"] = append(text, '\n')
	}
	return out, nil
}

func (b *dashboard) json(name string) object {
	choices := []object{
		{"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1},
		choice("bridge", "Bridge", "slurmbridge_poll_duration_seconds_count"),
	}
	if b.Nodes {
		choices = append(choices, choice("node", "Node", "gpuprof_jobs"))
	}
	return object{
		"uid": "slurmbridge-" + name, "title": "slurmbridge / " + b.Title, "description": b.About,
		"tags":          []string{"slurmbridge"},
		"schemaVersion": 41, // Grafana 12's; later ones convert it
		"editable":      true, "graphTooltip": 1, "timezone": "browser",
		"refresh": cmp.Or(b.Refresh, "30s"), "time": object{"from": cmp.Or(b.From, "now-6h"), "to": "now"},
		"links": []object{{
			"title": "slurmbridge", "type": "dashboards", "tags": []string{"slurmbridge"}, "icon": "external link",
			"includeVars": true, "keepTime": true,
		}},
		"templating": object{"list": choices}, "panels": b.place(),
	}
}

// choice lets the instances of a metric be chosen.
func choice(name, label, metric string) object {
	query := "label_values(" + metric + ", instance)"
	return object{
		"name": name, "label": label, "type": "query", "datasource": prometheus, "definition": query,
		"query": object{"qryType": 1, "query": query, "refId": "choice"}, "refresh": 2, "sort": 1,
		"multi": true, "includeAll": true, "allValue": ".*",
		"current": object{"text": []string{"All"}, "value": []string{"$__all"}},
	}
}

// place makes the panels, from left to right and down.
func (b *dashboard) place() []object {
	const columns = 24
	var out []object
	x, y, high := 0, 0, 0
	for i := range b.Panels {
		p := &b.Panels[i]
		panel, w, h := p.json(), 12, max(b.Height, 8)
		switch {
		case p.Row != "":
			w, h = columns, 1
		case p.Stat != "":
			w, h = 4, 4
		}
		if w = cmp.Or(p.Looks.Width, w); x+w > columns || x > 0 && h != high {
			x, y = 0, y+high
		}
		panel["id"], panel["gridPos"] = i+1, object{"x": x, "y": y, "w": w, "h": h}
		x, high = x+w, h
		out = append(out, panel)
	}
	return out
}

func (p *entry) json() object {
	if p.Row != "" {
		return object{"type": "row", "title": p.Row, "collapsed": false, "panels": []object{}}
	}
	field := object{"unit": p.Looks.Unit}
	out := object{"description": p.About, "datasource": prometheus, "targets": p.targets()}
	switch l := &p.Looks; {
	case p.Stat != "":
		out["type"], out["title"] = "stat", p.Stat
		out["options"] = object{
			"colorMode": "value", "graphMode": "none", "textMode": map[bool]string{false: "value", true: "name"}[l.Name],
			"reduceOptions": object{"calcs": []string{"lastNotNull"}},
		}
		field["color"], field["thresholds"] = object{"mode": "thresholds"}, object{"mode": "absolute", "steps": l.steps()}
		if l.None != "" {
			field["noValue"] = l.None
		}
		if l.YesNo {
			field["mappings"] = []object{{
				"type":    "value",
				"options": object{"0": object{"text": "no"}, "1": object{"text": "yes"}},
			}}
		}
	case p.Heatmap != "":
		out["type"], out["title"] = "heatmap", p.Heatmap
		out["options"] = object{
			"calculate":    false,
			"color":        object{"mode": "scheme", "scheme": "Oranges", "scale": "exponential", "exponent": 0.5, "steps": 64},
			"filterValues": object{"le": 1e-9}, "legend": object{"show": true}, "yAxis": object{"unit": l.Unit},
		}
	default:
		out["type"], out["title"] = "timeseries", p.Timeseries
		out["options"] = object{
			"legend": object{
				"calcs": []string{"lastNotNull", "max"}, "displayMode": "table", "placement": "bottom",
				"showLegend": true,
			},
			"tooltip": object{"mode": "multi", "sort": "desc"},
		}
		lines := object{"fillOpacity": 10, "lineWidth": 1, "showPoints": "never"}
		if l.Stack {
			lines["fillOpacity"], lines["lineInterpolation"], lines["stacking"] = 70, "stepAfter",
				object{"mode": "normal", "group": "A"}
		}
		field["custom"], field["color"] = lines, object{"mode": "palette-classic"}
		if !l.Free {
			field["min"] = l.Min
		}
		if l.Max != nil {
			field["max"] = *l.Max
		}
	}
	overrides := []object{}
	for _, legend := range slices.Sorted(maps.Keys(p.Looks.Colours)) {
		overrides = append(overrides, object{
			"matcher":    object{"id": "byName", "options": legend},
			"properties": []object{{"id": "color", "value": object{"mode": "fixed", "fixedColor": p.Looks.Colours[legend]}}},
		})
	}
	out["fieldConfig"] = object{"defaults": field, "overrides": overrides}
	return out
}

// steps are a stat's colours: "green", then "120 orange".
func (l *looks) steps() []object {
	out := []object{}
	for _, s := range l.Steps {
		from, colour, is := strings.Cut(s, " ")
		v, err := strconv.ParseFloat(from, 64)
		if !is || err != nil {
			out = append(out, object{"color": s, "value": nil})
			continue
		}
		out = append(out, object{"color": colour, "value": v})
	}
	if len(out) == 0 {
		out = []object{{"color": "text", "value": nil}}
	}
	return out
}

// short are the abbreviations of dashboards.yaml.
var short = strings.NewReplacer("$b", `instance=~"$bridge"`, "$n", `instance=~"$node"`, "$i", "$__rate_interval", "$r",
	"$__range")

// queries are the panel's, each with its legend, in full.
func (p *entry) queries() [][2]string {
	queries := slices.Clone(p.Queries)
	if p.Half != "" {
		quantile := func(q string) string {
			return "histogram_quantile(" + q + ", sum by (le) (rate(" + p.Half + "_bucket{$b}[$i])))"
		}
		queries = [][2]string{{"half", quantile("0.5")}, {"95 %", quantile("0.95")}}
	}
	for i := range queries {
		if of, is := strings.CutPrefix(queries[i][1], "mean "); is {
			metric, span, _ := strings.Cut(of, " ")
			sum := func(part string) string { return "sum(rate(" + metric + part + "{$b}[" + span + "]))" }
			queries[i][1] = sum("_sum") + " / " + sum("_count")
		}
		queries[i][1] = short.Replace(queries[i][1])
	}
	return queries
}

func (p *entry) targets() []object {
	var out []object
	for i, q := range p.queries() {
		t := object{
			"refId": string(rune('A' + i)), "datasource": prometheus, "editorMode": "code", "legendFormat": q[0],
			"expr": q[1], "instant": p.Stat != "", "range": p.Stat == "",
		}
		if p.Heatmap != "" {
			t["format"] = "heatmap"
		}
		out = append(out, t)
	}
	return out
}
