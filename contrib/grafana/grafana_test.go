package grafana

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/prometheus/series"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// units are the ones in use, by Grafana's names.
var units = []string{"short", "none", "s", "percentunit", "bytes", "Bps", "watt"}

// Every panel says what it shows, in a unit that Grafana has, and asks for series and labels that there are.
func TestPanelsAskForWhatThereIs(t *testing.T) {
	for name, b := range must.Get(read())(t) {
		if b.Title == "" || b.About == "" {
			t.Errorf("%s: title %q, about %q", name, b.Title, b.About)
		}
		for _, p := range b.Panels {
			if p.Row == "" && (!strings.HasSuffix(p.About, ".") || !slices.Contains(units, p.Looks.Unit) || p.Looks.Width > 24 ||
				len(p.All()) == 0) {
				t.Errorf("%s: %+v", name, p)
			}
		}
	}
	known := series.Daemons()
	for title, queries := range must.Get(Queries("5m"))(t) {
		for _, q := range queries {
			if err := known.Check(q); err != nil || strings.Contains(q, "$") {
				t.Errorf("%s: %s: %v", title, q, err)
			}
		}
	}
}

// The files that Grafana imports have panels beside each other, each of its own number, and name no particular site's data
// source.
func TestFilesThatGrafanaImports(t *testing.T) {
	for name, text := range must.Get(Boards())(t) {
		var b struct {
			UID    string
			ID     any
			Panels []struct {
				ID      int
				GridPos struct{ X, Y, W, H int }
			}
		}
		must.OK(t, json.Unmarshal(text, &b))
		taken := map[[2]int]int{}
		for i, p := range b.Panels {
			must.Equal(t, p.ID, i+1, name)
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := taken[[2]int{x, y}]; other != 0 || x >= 24 {
						t.Errorf("%s: panel %d lies on panel %d, or beyond the 24 columns", name, p.ID, other)
					}
					taken[[2]int{x, y}] = p.ID
				}
			}
		}
		for _, m := range regexp.MustCompile(`"uid": "([^"]+)"`).FindAllStringSubmatch(string(text), -1) {
			if b.ID != nil || m[1] != "${datasource}" && m[1] != b.UID {
				t.Errorf("%s: id %v, uid %q", name, b.ID, m[1])
			}
		}
	}
}
