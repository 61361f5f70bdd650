package grafana

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/prometheus/series"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// units are the ones in use, by Grafana's names.
var units = []string{"short", "none", "s", "percentunit", "bytes", "Bps", "watt"}

// types are the kinds of panel in use.
var types = []string{"stat", "timeseries", "heatmap"}

func TestDashboards(t *testing.T) {
	known := series.Daemons()
	uids := map[string]bool{}
	for name, text := range must.Get(Boards())(t) {
		b := must.Get(Read(text))(t)
		// 39 is Grafana 11's, 41 is 12's; later ones are converted by Grafana.
		if b.UID == "" || uids[b.UID] || b.Title == "" || b.Description == "" || b.SchemaVersion < 39 ||
			!slices.Contains(b.Tags, "slurmbridge") {
			t.Errorf("%s: %q %q %q %d %v", name, b.UID, b.Title, b.Description, b.SchemaVersion, b.Tags)
		}
		uids[b.UID] = true
		variables(t, name, b, known)
		ids := map[int]bool{}
		for i := range b.Panels {
			p := &b.Panels[i]
			if p.ID == 0 || ids[p.ID] || p.Title == "" {
				t.Errorf("%s: panel %q has the id %d of another, or none", name, p.Title, p.ID)
			}
			ids[p.ID] = true
			if p.Type != "row" {
				panel(t, name+": "+p.Title, p, known)
			}
		}
		overlap(t, name, b.Panels)
	}
}

// variables checks that the first one chooses the data source, and that all query it.
func variables(t *testing.T, name string, b *Board, known series.Set) {
	t.Helper()
	for i, v := range b.Templating.List {
		switch {
		case i == 0 && (v.Name != "datasource" || v.Type != "datasource"):
			t.Errorf("%s: the first variable is %+v, not the data source", name, v)
		case i > 0 && (v.Type != "query" || v.Datasource == nil || v.Datasource.UID != "${datasource}"):
			t.Errorf("%s: variable %+v", name, v)
		case v.Label == "":
			t.Errorf("%s: variable %s has no label", name, v.Name)
		}
		if v.Type != "query" {
			continue
		}
		m := regexp.MustCompile(`^label_values\((\w+), instance\)$`).FindStringSubmatch(v.Definition)
		if m == nil || known.Check(m[1]) != nil {
			t.Errorf("%s: variable %s queries %q", name, v.Name, v.Definition)
		}
	}
}

func panel(t *testing.T, where string, p *Panel, known series.Set) {
	t.Helper()
	if !slices.Contains(types, p.Type) || p.Description == "" || !strings.HasSuffix(p.Description, ".") {
		t.Errorf("%s: type %q, description %q", where, p.Type, p.Description)
	}
	if !slices.Contains(units, p.FieldConfig.Defaults.Unit) {
		t.Errorf("%s: unit %q", where, p.FieldConfig.Defaults.Unit)
	}
	if p.Datasource == nil || *p.Datasource != (Source{"prometheus", "${datasource}"}) || len(p.Targets) == 0 {
		t.Errorf("%s: data source %v, %d queries", where, p.Datasource, len(p.Targets))
	}
	refs := map[string]bool{}
	for i := range p.Targets {
		q := &p.Targets[i]
		if q.Datasource == nil || *q.Datasource != *p.Datasource || q.RefID == "" || refs[q.RefID] || q.LegendFormat == "" ||
			q.Instant == q.Range {
			t.Errorf("%s: query %+v", where, q)
		}
		refs[q.RefID] = true
		expr := q.Query("5m")
		if strings.Contains(expr, "$") {
			t.Errorf("%s: an unknown variable: %s", where, expr)
		}
		if err := known.Check(expr); err != nil {
			t.Errorf("%s: %s: %v", where, expr, err)
		}
	}
}

// overlap checks that no two panels cover each other and none goes beyond the 24 columns.
func overlap(t *testing.T, name string, panels []Panel) {
	t.Helper()
	taken := map[[2]int]string{}
	for i := range panels {
		p, g := &panels[i], panels[i].GridPos
		if g.W <= 0 || g.H <= 0 || g.X < 0 || g.X+g.W > 24 {
			t.Errorf("%s: %s lies at %+v", name, p.Title, g)
		}
		on := map[string]bool{}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok {
					on[other] = true
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		for other := range maps.Keys(on) {
			t.Errorf("%s: %s lies on %s", name, p.Title, other)
		}
	}
}

// The files hold no credentials, no particular site's data source, and nothing that only
// the Grafana that wrote them has.
func TestDashboardsFitAnySite(t *testing.T) {
	for name, text := range must.Get(Boards())(t) {
		if again := must.Get(Boards())(t)[name]; string(again) != string(text) {
			t.Errorf("%s: made twice it differs", name)
		}
		var board map[string]any
		must.OK(t, json.Unmarshal(text, &board))
		if board["id"] != nil {
			t.Errorf("%s: id %v: Grafana gives its own", name, board["id"])
		}
		for _, m := range regexp.MustCompile(`"uid": "([^"]+)"`).FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains([]string{"${datasource}", "-- Grafana --", board["uid"].(string)}, m[1]) {
				t.Errorf("%s: uid %q", name, m[1])
			}
		}
	}
}
