// What each chart carries itself: the code proper is held once a page, by a model of its own.
const load = async (model) => {
  const library = await model.widget_manager.get_model(model.get("library").replace("IPY_MODEL_", ""));
  const code = library.get("code");
  const pages = (globalThis.__looptap ??= new Map());
  if (!pages.has(code)) {
    const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
    pages.set(code, import(url).finally(() => URL.revokeObjectURL(url)));
  }
  return pages.get(code);
};
export default {
  initialize: async ({ model }) => (await load(model)).initialize(model),
  render: async ({ model, el }) => (await load(model)).render(model, el),
};
