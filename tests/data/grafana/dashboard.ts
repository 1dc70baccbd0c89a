// The type of a dashboard with the panels that ours have, made of the types that Grafana publishes.
import type { Dashboard, FieldConfig, Panel, RowPanel, VariableModel } from "@grafana/schema";
import type * as heatmap from "@grafana/schema/dist/esm/raw/composable/heatmap/panelcfg/x/HeatmapPanelCfg_types.gen";
import type * as stat from "@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen";
import type * as states from "@grafana/schema/dist/esm/raw/composable/statetimeline/panelcfg/x/StateTimelinePanelCfg_types.gen";
import type * as table from "@grafana/schema/dist/esm/raw/composable/table/panelcfg/x/TablePanelCfg_types.gen";
import type * as series from "@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";

// A file has the texts of enumerations; Grafana itself sets defaults for what is absent.
type Plain<T> = T extends string
  ? `${T}`
  : T extends (infer Each)[]
    ? Plain<Each>[]
    : T extends object
      ? { [Key in keyof T]?: Plain<T[Key]> }
      : T;

interface Query {
  datasource: { type: "prometheus"; uid: string };
  expr: string;
  refId: string;
  legendFormat?: string;
  instant?: boolean;
  range?: boolean;
  format?: "time_series" | "table" | "heatmap";
  editorMode?: "builder" | "code";
  exemplar?: boolean;
  interval?: string;
}

type Shown<Type extends string, Options, Custom> = Plain<
  Omit<Panel, "type" | "options" | "fieldConfig" | "targets">
> & {
  type: Type;
  options: Plain<Options>;
  fieldConfig: {
    defaults: Plain<Omit<FieldConfig, "custom">> & { custom?: Plain<Custom> };
    overrides: { matcher: { id: string; options?: unknown }; properties: { id: string; value?: unknown }[] }[];
  };
  targets: Query[];
};

type AnyPanel =
  | Shown<"stat", stat.Options, object>
  | Shown<"table", table.Options, table.FieldConfig>
  | Shown<"timeseries", series.Options, series.FieldConfig>
  | Shown<"heatmap", heatmap.Options, heatmap.FieldConfig>
  | Shown<"state-timeline", states.Options, states.FieldConfig>;

type Row = Plain<Omit<RowPanel, "panels">> & { type: "row"; panels: AnyPanel[] };

export type Ours = Plain<Omit<Dashboard, "panels" | "id" | "templating">> & {
  id: null;
  panels: (AnyPanel | Row)[];
  // Grafana writes and shows the definition of a variable, which its schema does not list.
  templating: { list: (Plain<VariableModel> & { definition?: string })[] };
};
