// Package grafana makes the dashboards that Grafana imports of dashboards.yaml, and reads them for
// tests: bridge.json shows whether the bridge is well, sharing.json what sharing does to GPUs
// and jobs, usage.json what the GPUs were used for.
package grafana

import (
	"encoding/json"
	"strings"
)

// Board holds the tested part of a dashboard.
type Board struct {
	UID, Title, Description string
	SchemaVersion           int
	Tags                    []string
	Panels                  []Panel
	Templating              struct{ List []Variable }
}

// Variable is a choice that a dashboard offers.
type Variable struct {
	Name, Label, Type, Definition string
	Datasource                    *Source
}

// Panel is a graph, or the heading of a row (Type "row").
type Panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               *Source
	GridPos                  struct{ X, Y, W, H int }
	FieldConfig              struct {
		Defaults struct {
			Unit string
		}
	}
	Targets []Target
}

// Target is a query of a panel.
type Target struct {
	RefID, Expr, LegendFormat, Format string
	Instant, Range                    bool
	Datasource                        *Source
}

// Source is a data source.
type Source struct{ Type, UID string }

// Read returns the dashboard of a file's text.
func Read(text []byte) (*Board, error) {
	b := &Board{}
	return b, json.Unmarshal(text, b)
}

// Query is the target's expression as Prometheus receives it, for all bridges and nodes
// and with rates over the given span ("1m").
func (t *Target) Query(span string) string {
	return strings.NewReplacer("$__rate_interval", span, "$__range", span, "$bridge", ".*", "$node", ".*").Replace(t.Expr)
}
